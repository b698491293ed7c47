// A text that is either read, as tokens, or changed, in a textarea at the same place.

import { el, grow } from "./dom.js";

export class Editor {
  constructor(text, write) {
    this.text = text;
    this.area = el("textarea", {
      class: "text", rows: "4", spellcheck: "false", autocapitalize: "off", hidden: true,
      "aria-label": "the text to go on with",
      placeholder: "Type the beginning of a text here, then press Write.",
      oninput: () => grow(this.area),
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          write();
        }
      },
    });
    this.element = el("div", { class: "editor" }, this.area, text);
  }

  get editing() {
    return !this.area.hidden;
  }

  get value() {
    return this.area.value;
  }

  edit(value, caret) {
    this.area.value = value;
    this.area.hidden = false;
    this.text.hidden = true;
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(caret, caret);
    grow(this.area);
  }

  show() {
    this.area.hidden = true;
    this.text.hidden = false;
  }
}
