"""YAML files whose errors name the line. Imports nothing heavy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.command.argv import short_repr
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError, nearest

if TYPE_CHECKING:
    import yaml

LONGEST = 1_000_000  # characters of a file, and nodes after its anchors are expanded
DEEPEST = 100  # levels of nodes


class YamlFile:
    """A YAML file as a tree of nodes that know their lines. Messages begin with `flag`; `holds` says what belongs in
    it."""

    def __init__(self, path: Path, *, flag: str, holds: str) -> None:
        """Read a file. InputError: unreadable, not YAML, empty, or too large when its anchors are expanded."""
        import yaml

        self.path, self.flag = path, flag
        try:
            text = user_files.read_bytes(path).decode("utf-8-sig")
            if len(text) > LONGEST:
                raise InputError(f"{flag} {path}: is longer than the {LONGEST} letters that such a file may have")
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
        except OSError as error:
            raise InputError(f"{flag} {path}: cannot be read ({error.strerror})") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            where = getattr(error, "problem_mark", None)
            line = f", line {where.line + 1}" if where else ""
            raise InputError(f"{flag} {path}{line}: not valid YAML") from error
        if root is None:
            raise InputError(f"{flag} {path}: is empty; it holds {holds}")
        self.root: yaml.Node = root
        self._loader = loader
        self._check_anchors(root, ())

    def _check_anchors(self, node: yaml.Node, above: tuple[int, ...], budget: list[int] | None = None) -> None:
        """Raise InputError if an anchor contains itself, or the expanded file has too many nodes or more than DEEPEST
        levels. `above`: ids of the nodes around this one; `budget`: a list with the number of nodes left, counted
        down."""
        budget = [LONGEST] if budget is None else budget
        budget[0] -= 1
        if id(node) in above:
            raise self.error(node, "an anchor stands within itself; write out what it stands for")
        if budget[0] < 0 or len(above) > DEEPEST:
            raise self.error(node, "is nested or repeated beyond what anybody writes")
        children = node.value if isinstance(node.value, list) else []
        for child in itertools.chain.from_iterable(c if isinstance(c, tuple) else (c,) for c in children):
            self._check_anchors(child, (*above, id(node)), budget)

    def error(self, node: yaml.Node, message: str) -> InputError:
        """An InputError whose message names the line of `node`."""
        return InputError(f"{self.place(node)}: {message}")

    def place(self, node: yaml.Node) -> str:
        """The position of a node, for messages: "FLAG FILE, line N"."""
        return f"{self.flag} {self.path}, line {node.start_mark.line + 1}"

    def mapping(self, node: yaml.Node, what: str, valid: Sequence[str] = ()) -> dict[str, yaml.Node]:
        """The entries of a mapping, {key: node}, which messages call `what`; merge keys (<<) are resolved. InputError:
        it is no mapping, has a key twice, or a key that is not among `valid`, if these are given."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"{what} must be a mapping, as in 'name: value'")
        names = [key.value for key, _ in node.value]
        for i, (key, _) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(key, f"a name in {what} must be a plain word")
            if key.value in names[:i]:
                raise self.error(key, f"{short_repr(key.value)} stands there twice; say it once")
        self._loader.flatten_mapping(node)
        nodes = {key.value: value for key, value in node.value}
        for key, _ in node.value:
            if valid and key.value not in valid:
                raise self.error(
                    key, f"{short_repr(key.value)} is nothing that {what} holds{nearest(key.value, valid)}; it holds "
                    f"{', '.join(valid)}"
                )  # fmt: skip
        return nodes

    def sequence(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        """The nodes of a list, which messages call `what`. InputError: no list, or an empty one."""
        import yaml

        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, f"{what} must be a list, an entry a line behind '-'")
        if not node.value:
            raise self.error(node, f"{what} is empty; name at least one, or leave it out")
        return list(node.value)

    def plain(self, node: yaml.Node) -> Any:
        """The value of a node in plain types. InputError: it has none, as an impossible date."""
        import yaml

        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(node, "not valid YAML") from error
