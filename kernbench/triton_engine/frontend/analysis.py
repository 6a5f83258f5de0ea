"""What the machine wants to know of a program before it runs: lifetimes, launch-invariant code, safe aliasing.

Sets of slots are Python integers used as bit sets: kernels with a sort have thousands of slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from kernbench.triton_engine.ops.registry import UnsupportedOpError
from kernbench.triton_engine.values import Late

from .program import BasicBlock, Branch, ForBack, ForHead, Instr, Jump, Program
from .types import Ty


def term_uses(code: BasicBlock) -> list[int]:
    """Slots that the terminator of a block reads."""
    match code.term:
        case Jump(moves=moves):
            return [s for _, s in moves]
        case Branch(cond=cond, then=then, other=other):
            return [cond, *(s for _, s in then.moves), *(s for _, s in other.moves)]
        case ForHead(iv=iv, upper=upper, step=step):
            return [iv, upper, step]
        case ForBack(iv=iv, step=step, moves=moves):
            return [iv, step, *(s for _, s in moves)]
    return []


def edges(code: BasicBlock) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Successors and the moves on each edge."""
    match code.term:
        case Jump(target=target, moves=moves):
            return [(target, moves)]
        case Branch(then=then, other=other):
            return [(then.target, then.moves), (other.target, other.moves)]
        case ForHead(body=body, exit=exit_):
            return [(body, ()), (exit_, ())]
        case ForBack(head=head, moves=moves):
            return [(head, moves)]
    return []


def region_uses(instr: Instr) -> list[int]:
    """Slots of the enclosing program that the regions of an instruction read."""
    out: list[int] = []
    for sub in instr.info.regions:
        inner = set(sub.args)
        for i in sub.code:
            out += [a for a in (*i.args, *region_uses(i)) if a not in inner]
            inner.update(i.results)
        out += [r for r in sub.results if r not in inner]
    return out


def uses(instr: Instr) -> list[int]:
    """Slots that an instruction reads."""
    return [*instr.args, *region_uses(instr)] if instr.info.regions else list(instr.args)


def bits(slots: object) -> int:
    """A set of slots as a bit mask."""
    out = 0
    for s in slots:  # type: ignore[attr-defined]
        out |= 1 << s
    return out


def members(mask: int) -> list[int]:
    """The slots of a bit mask."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


def liveness(program: Program) -> tuple[list[int], list[int]]:
    """Slots live on entry of each block, and at its end just before the terminator reads."""
    blocks = program.blocks
    n = len(blocks)
    gen, kill = [0] * n, [0] * n
    for code in blocks:
        g = k = 0
        for instr in code.instrs:
            g |= bits(uses(instr)) & ~k
            k |= bits(instr.results)
        g |= bits(term_uses(code)) & ~k
        gen[code.index], kill[code.index] = g, k
    live_in = [0] * n
    at_end = [0] * n
    changed = True
    while changed:
        changed = False
        for code in reversed(blocks):
            i = code.index
            end = bits(term_uses(code))
            for target, moves in edges(code):
                defined = bits(d for d, _ in moves)
                if isinstance(code.term, ForBack):
                    defined |= 1 << code.term.iv
                end |= live_in[target] & ~defined
            new = gen[i] | (end & ~kill[i])
            if new != live_in[i] or end != at_end[i]:
                live_in[i], at_end[i] = new, end
                changed = True
    return live_in, at_end


def _invariants(program: Program) -> tuple[list[Instr], set[int]]:
    """Pure integer and pointer instructions that depend only on the grid and on integer or pointer arguments."""
    known = set(program.constants)
    known.update(slot for slot, ty in program.args if ty.is_int or ty.is_ptr)
    candidates: list[Instr] = []
    for code in program.blocks:
        for instr in code.instrs:
            info, row = instr.info, instr.info.row
            if not row.pure or info.regions or not all(a in known for a in instr.args):
                continue
            if row.tells_addresses and info.operand_types[-1].is_ptr:
                continue
            if not all(t.is_int or t.is_ptr for t in info.result_types):
                continue
            if not row.symbolic and any(t.shape for t in (*info.operand_types, *info.result_types)):
                continue
            candidates.append(instr)
            known.update(instr.results)
    inside = {id(i) for i in candidates}
    wanted: set[int] = set()
    for code in program.blocks:
        wanted.update(term_uses(code))
        for instr in code.instrs:
            if id(instr) not in inside and instr.info.row.addressing:
                wanted.update(instr.args)
    kept: list[Instr] = []
    for instr in reversed(candidates):
        if any(r in wanted for r in instr.results):
            kept.append(instr)
            wanted.update(instr.args)
    kept.reverse()
    return kept, {r for i in kept for r in i.results}


def _frontier(program: Program, invariant: set[int], types: list[Ty | None]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for code in program.blocks:
        for instr in code.instrs:
            if instr.info.row.frontier:
                for a in instr.args:
                    ty = types[a]
                    if a in invariant and ty is not None and not ty.shape and ty.is_int:
                        found[a] = None
    return tuple(found)


def _key_args(program: Program, invariant: list[Instr]) -> tuple[int, ...]:
    needed = {a for i in invariant for a in i.args}
    return tuple(i for i, (slot, ty) in enumerate(program.args) if ty.is_int and slot in needed)


def _loops(program: Program) -> bool:
    """Mark loops that read memory; true if the program may wait for memory to change."""
    waits = False
    for code in program.blocks:
        jump = code.term
        if not isinstance(jump, Jump) or jump.loop is None:
            continue
        body = program.blocks[jump.target : code.index + 1]
        reads = any(i.info.row.reads for c in body for i in c.instrs)
        # A loop over branches that its own lane's arithmetic ends is no wait, but reading memory in a `while` may be.
        jump.loop.reads_memory = reads
        waits |= reads
    return waits


def _views(program: Program, use_sites: dict[int, list[tuple[int, int]]]) -> None:
    """Loads whose result may be a view of memory: it dies before anything writes."""
    for code in program.blocks:
        for at, instr in enumerate(code.instrs):
            if not instr.info.row.loads or not instr.results:
                continue
            limit = len(code.instrs)
            for j in range(at + 1, len(code.instrs)):
                if code.instrs[j].info.row.writes:
                    limit = j
                    break
            names = set(instr.results)
            for j in range(at + 1, limit):
                other = code.instrs[j]
                if other.info.row.alias and any(a in names for a in other.args):
                    names.update(other.results)
            stored = limit < len(code.instrs) and code.instrs[limit].info.row.stores is not None
            last_ok = limit if stored else limit - 1
            instr.info.view_ok = all(b == code.index and j <= last_ok for s in names for b, j in use_sites[s])


def _ownership(program: Program, types: list[Ty | None], live_in: list[int]) -> set[int]:
    """Slots whose tensor has no other reader: their memory may be reused by the operation that uses them last."""
    aliased: set[int] = set()
    fresh: set[int] = set()
    sources: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for code in program.blocks:
        for instr in code.instrs:
            if instr.info.row.alias:
                aliased.update(instr.args)
            if instr.info.row.inplace:
                fresh.update(instr.results)
        for target, moves in edges(code):
            counts: dict[int, int] = defaultdict(int)
            for _, s in moves:
                counts[s] += 1
            for d, s in moves:
                dies = counts[s] == 1 and not bool((live_in[target] >> s) & 1)
                sources[d].append((s, dies))
    owned = {s for s in (*fresh, *sources) if s not in aliased and types[s] is not None and types[s].is_float}  # type: ignore[union-attr]
    changed = True
    while changed:
        changed = False
        for slot, origins in sources.items():
            if slot not in owned:
                continue
            for origin, dies in origins:
                scalar = origin in program.constants and not hasattr(program.constants[origin], "shape")
                if not scalar and not (dies and origin in owned):
                    owned.discard(slot)
                    changed = True
                    break
    return owned


def _sink_stored(program: Program) -> None:
    """Move an operation whose result is only stored to just before that store, so that it can be computed into memory."""
    counts: dict[int, int] = defaultdict(int)
    for code in program.blocks:
        for instr in code.instrs:
            for a in uses(instr):
                counts[a] += 1
        for a in term_uses(code):
            counts[a] += 1
    for code in program.blocks:
        made = {r: i for i in code.instrs for r in i.results}
        order = list(code.instrs)
        for instr in code.instrs:
            if instr.info.row.stores is None:
                continue
            value = instr.args[instr.info.row.stores]
            source = made.get(value)
            if source is None or counts[value] != 1 or source.info.row.into is None or not source.info.ty.is_float:
                continue
            begin, end = order.index(source), order.index(instr)
            if any(i.info.row.writes for i in order[begin + 1 : end]):
                continue
            order.remove(source)
            order.insert(end - 1, source)
            source.info.late = True
        code.instrs = order


def finish(program: Program, types: list[Ty | None]) -> Program:
    """Fill in lifetimes and properties, then build every instruction."""
    program.by_thread = any(
        i.info.row.tells_threads is not None and i.info.row.tells_threads(i.info)
        for code in program.blocks
        for i in code.instrs
    )
    invariant, invariant_slots = _invariants(program)
    hoisted = {id(i) for i in invariant}
    program.frontier = _frontier(program, invariant_slots, types)
    program.key_args = _key_args(program, invariant)
    program.invariant = invariant
    for code in program.blocks:
        code.instrs = [i for i in code.instrs if id(i) not in hoisted]
    program.waits = _loops(program)
    if not program.by_thread:  # where there are threads, a store and what it stores need not be of the same lanes
        _sink_stored(program)

    use_sites: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for code in program.blocks:
        for at, instr in enumerate(code.instrs):
            for a in uses(instr):
                use_sites[a].append((code.index, at))
        for a in term_uses(code):
            use_sites[a].append((code.index, len(code.instrs) + 1))
    _views(program, use_sites)

    live_in, at_end = liveness(program)
    owned = _ownership(program, types, live_in)
    program.owned = frozenset(owned)
    program.types = list(types)
    lasting = bits(program.constants) | bits(s for s, _ in program.args) | bits(invariant_slots)
    preds: dict[int, int] = defaultdict(int)
    for code in program.blocks:
        live = at_end[code.index]
        for target, _ in edges(code):
            preds[target] |= live
        live |= bits(term_uses(code))
        for instr in reversed(code.instrs):
            used = bits(uses(instr))
            dead = (used | bits(instr.results)) & ~live & ~lasting
            instr.kills = tuple(members(dead))
            instr.info.result_used = any((live >> r) & 1 for r in instr.results)
            if instr.info.row.inplace and len(instr.results) == 1:
                ty = instr.info.ty
                instr.info.reusable = tuple(
                    k
                    for k, a in enumerate(instr.args)
                    if a in owned and (dead >> a) & 1 and instr.args.count(a) == 1 and types[a] == ty
                )
            live = (live & ~bits(instr.results)) | used
    for code in program.blocks:
        code.live_in = tuple(members(live_in[code.index]))
        code.live_out = tuple(members(at_end[code.index] | bits(term_uses(code))))
        code.kills = tuple(members(preds[code.index] & ~live_in[code.index] & ~lasting))
    _build(program, invariant)
    return program


def _late(fn: Callable[..., object], into: Callable[..., bool], batch: object, *args: object) -> Late:
    return Late(fn, into, batch, args)


def _build(program: Program, invariant: list[Instr]) -> None:
    def build(code: list[Instr]) -> None:
        for instr in code:
            for sub in instr.info.regions:
                build(sub.code)
            info = instr.info
            try:
                instr.fn = info.row.build(info)
                if info.late and info.row.into is not None:
                    instr.fn = partial(_late, instr.fn, info.row.into(info))
            except (NotImplementedError, KeyError, ValueError) as error:
                if str(info.loc) in str(error):
                    raise
                raise UnsupportedOpError(
                    f"kernel {info.kernel}: {info.name} is not supported as it is used here: {error}\n"
                    f"  at {info.loc}\n  {info.text}"
                ) from error

    build(invariant)
    for code in program.blocks:
        build(code.instrs)
