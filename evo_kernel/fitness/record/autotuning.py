"""Chooses among a kernel's autotune configurations while a plan is recorded: nothing is timed here.

Runs in the recorder's child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton.runtime.autotuner import Autotuner

MOST_CONFIGS, MOST_CHARACTERS = 1000, 200


class Autotuning:
    """Replaces `Autotuner.run` with one setting of the knobs."""

    def __init__(
        self, case: str, knobs: dict[str, int], passed_over: dict[str, int], seen: dict[str, dict[str, Any]]
    ) -> None:
        """`passed_over`: by kernel, how many configurations do not fit; a kernel that no knob sets takes the next.
        `seen`: gets the configurations of every kernel that is launched, and which of them its launches in `case`
        prune."""
        self._case, self._knobs, self._passed_over, self._seen = case, knobs, passed_over, seen

    def run(self, tuner: Autotuner, args: tuple, options: dict[str, Any]) -> Any:
        """Launch with one configuration, as Triton does once it has chosen it."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        config = self._choose(tuner, options)
        tuner.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **options, **config.all_kwargs()})
        return tuner.fn.run(*args, **options, **config.all_kwargs())

    def _choose(self, tuner: Autotuner, options: dict[str, Any]) -> Any:
        """The configuration that a knob names, by its position in the kernel's list, if Triton could choose it here."""
        name, all_of_them = tuner.base_fn.__name__, tuner.configs
        possible = tuner.prune_configs(options) if len(all_of_them) > 1 else all_of_them
        own = possible[min(self._passed_over.get(name, 0), len(possible) - 1)]
        if name not in self._seen:
            texts = [_text(config) for config in all_of_them[:MOST_CONFIGS]]
            self._seen[name] = {
                "texts": texts,
                "own": all_of_them.index(own) if own in all_of_them else 0,
                "pruned": {},
            }
        if f"{name}.config" not in self._knobs:
            pruned = {n for n, config in enumerate(all_of_them[:MOST_CONFIGS]) if config not in possible}
            before = self._seen[name]["pruned"].get(self._case, pruned)
            self._seen[name]["pruned"][self._case] = sorted(pruned.intersection(before))
        named = self._knobs.get(f"{name}.config")
        wanted = own if named is None or named >= len(all_of_them) else all_of_them[named]
        return wanted if wanted in possible else own


def _text(config: Any) -> str:
    """What a configuration sets."""
    return ", ".join(part for part in str(config).split(", ") if not part.endswith(": None"))[:MOST_CHARACTERS]
