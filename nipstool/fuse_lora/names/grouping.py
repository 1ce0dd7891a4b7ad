"""Gather the keys of a file into sets of factors, one for each module, algorithm and spelling."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .suffixes import refusal, split_key

Shape = tuple[int, ...]
Widths = tuple[int, int] | None

# every one of these must have one of its choices, all of whose roles are there
_NEEDED: Mapping[str, tuple[tuple[set[str], ...], ...]] = {
    "lora": (({"down"},), ({"up"},)),
    "loha": (({"w1_a", "w1_b"},), ({"w2_a", "w2_b"},)),
    "lokr": (({"w1"}, {"w1_a", "w1_b"}), ({"w2"}, {"w2_a", "w2_b"})),
}


@dataclass
class Group:
    """The keys of one stem, one algorithm and one spelling: role -> key."""

    stem: str
    algorithm: str
    style: str
    keys: dict[str, str] = field(default_factory=dict)

    def is_complete(self) -> bool:
        """Whether every factor that the algorithm needs is there."""
        return all(any(roles <= self.keys.keys() for roles in choices) for choices in _NEEDED[self.algorithm])


@dataclass
class Groups:
    """complete: sets of factors in file order; loose: keys of none; refused: (what, example); refused_keys."""

    complete: list[Group] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    refused_keys: list[str] = field(default_factory=list)


def group_keys(shapes: Mapping[str, Shape]) -> Groups:
    """Gather the factors of a file. What an unsupported algorithm wrote is set aside with all keys of its stem."""
    found = Groups()
    groups: dict[tuple[str, str, str], Group] = {}
    shared: list[tuple[str, str, str]] = []
    refused_stems: set[str] = set()
    for key, shape in shapes.items():
        if (ending := split_key(key)) and ending.stem:
            if not ending.algorithm:
                shared.append((ending.stem, ending.role, key))
                continue
            name = (ending.stem, ending.algorithm, ending.style)
            _add(groups.setdefault(name, Group(*name)), ending.role, key, found.loose)
        elif refused := refusal(key, len(shape)):
            what, stem = refused
            found.refused.setdefault(what, key)
            found.refused_keys.append(key)
            # a control LoRA's mark stands beside factors that are plain LoRA
            if what != "control LoRA":
                refused_stems.add(stem)
        else:
            found.loose.append(key)
    _settle(found, groups.values(), shared, refused_stems)
    return found


def _add(group: Group, role: str, key: str, loose: list[str]) -> None:
    if role in group.keys:
        loose.append(key)
    else:
        group.keys[role] = key


def _settle(
    found: Groups, groups: Iterable[Group], shared: Iterable[tuple[str, str, str]], refused_stems: set[str]
) -> None:
    """Say what becomes of each group, and give alpha and its like to the first complete one of their stem."""
    by_stem: dict[str, Group] = {}
    for group in groups:
        if group.stem in refused_stems:
            found.refused_keys += group.keys.values()
        elif group.is_complete():
            found.complete.append(group)
            by_stem.setdefault(group.stem, group)
        else:
            found.loose += group.keys.values()
    for stem, role, key in shared:
        if stem in refused_stems:
            found.refused_keys.append(key)
        elif stem in by_stem:
            _add(by_stem[stem], role, key, found.loose)
        else:
            found.loose.append(key)


def widths(group: Group, shapes: Mapping[str, Shape]) -> Widths:
    """(out, in) of a module from the shapes of its factors; None where they do not say."""
    sizes = {role: shapes[key] for role, key in group.keys.items()}
    if group.algorithm == "lora":
        return _outer(sizes["up"], sizes["down"])
    if group.algorithm == "loha":
        return _outer(sizes["w1_a"], sizes["w1_b"], tucker="t1" in sizes)
    first = _outer(sizes["w1"], sizes["w1"]) if "w1" in sizes else _outer(sizes["w1_a"], sizes["w1_b"])
    if "w2" in sizes:
        second = _outer(sizes["w2"], sizes["w2"])
    else:
        second = _outer(sizes["w2_a"], sizes["w2_b"], tucker="t2" in sizes)
    if first is None or second is None:
        return None
    return first[0] * second[0], first[1] * second[1]


def _outer(left: Shape, right: Shape, *, tucker: bool = False) -> Widths:
    """Rows of the left and columns of the right factor; Tucker factors both have the rank in front."""
    if len(left) < 2 or len(right) < 2:
        return None
    return left[1 if tucker else 0], right[1]
