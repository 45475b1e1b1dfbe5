"""Controls of the page that change the node. Only there if the node allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

STEP = 0.001  # of numbers; coarser ones would be rounded


class Controls:
    """Buttons for the node's services, and its parameters that may change while it runs."""

    def __init__(self, gui: Any, offered: Mapping[str, Any], command: Callable[..., None]) -> None:
        """offered: ``suffixes`` of exports and ``settings``, see ``feed.Offered``."""
        self._gui, self._command = gui, command
        self._fields: dict[str, Any] = {}
        with gui.add_folder("Map"):
            self._add_files(offered["suffixes"])
        self._enabled = gui.add_checkbox("Process images", True)
        self._enabled.on_update(
            lambda event: self._send(event, "enable", {"data": bool(event.target.value)})
        )
        with gui.add_folder("Parameters"):
            for setting in offered["settings"]:
                self._fields[setting["name"]] = self._add_setting(setting)

    def take(self, values: Mapping[str, Any]) -> None:
        """Shows the values that are in force: of parameters, and ``enabled``."""
        if "enabled" in values:
            self._set(self._enabled, bool(values["enabled"]))
        for name, value in values.get("parameters", {}).items():
            if name in self._fields:
                self._set(self._fields[name], value)

    def _add_files(self, suffixes: list[str]) -> None:
        gui = self._gui
        name = gui.add_text("File name", "room")
        suffix = gui.add_dropdown("Format", suffixes)
        gui.add_button("Export").on_click(
            lambda _: self._command("export", {"path": name.value + suffix.value})
        )
        gui.add_button("Save the scene").on_click(
            lambda _: self._command("save", {"path": name.value})
        )
        sure = gui.add_checkbox("Yes, forget the map", False)
        reset = gui.add_button("Reset", color="red", disabled=True)
        sure.on_update(lambda _: setattr(reset, "disabled", not sure.value))

        def forget(_: Any) -> None:
            sure.value = False
            self._command("reset", {})

        reset.on_click(forget)

    def _add_setting(self, setting: Mapping[str, Any]) -> Any:
        name, value, text = setting["name"], setting["value"], setting["text"]
        gui, choices = self._gui, setting["choices"]
        if choices:
            field = gui.add_dropdown(name, choices, initial_value=value, hint=text)
        elif isinstance(value, list | tuple):  # a range: the only kind of list that may change
            field = gui.add_vector2(name, tuple(value), hint=text, step=STEP)
        elif isinstance(value, bool):
            field = gui.add_checkbox(name, value, hint=text)
        elif isinstance(value, int | float):
            field = gui.add_number(
                name, value, min=setting["low"], max=setting["high"], hint=text,
                step=1 if isinstance(value, int) else STEP,
            )  # fmt: skip
        else:
            field = gui.add_text(name, str(value), hint=text)
        field.on_update(
            lambda event: self._send(event, "set", {"name": name, "value": event.target.value})
        )
        return field

    def _send(self, event: Any, name: str, values: dict[str, Any]) -> None:
        if event.client is not None:  # a user, not ``take``
            self._command(name, values)

    @staticmethod
    def _set(field: Any, value: Any) -> None:
        value = tuple(value) if isinstance(value, list) else value
        if field.value != value:
            field.value = value
