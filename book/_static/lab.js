// What a style sheet can't know about a page: which boxes scroll, and which output is a table.
(() => {
  const BOXES = "pre, .lab div, .pst-scrollable-table-container, mjx-container[display]";
  const PRINTED = ".output > pre, .output > .highlight > pre";
  const NO_PROSE =
    "figure, svg, .bd-header-article, #jb-print-docs-body, .prev-next-footer, .tag_hide-input .cell_input";

  // Printed columns stay columns where they don't fit; everything else that is printed wraps.
  const hasColumns = (box) => {
    const lines = box.textContent.split("\n").filter((line) => /\S {2,}\S/.test(line));
    const character = 0.61 * parseFloat(getComputedStyle(box).fontSize);
    return lines.some((line) => line.length * character > box.clientWidth - 32);
  };

  // A box that scrolls can be reached by keyboard, and shows on which side there is more.
  const mark = (box) => {
    const hidden = box.scrollWidth - box.clientWidth;
    box.classList.toggle("scrolls", hidden > 1);
    box.classList.toggle("more", hidden - box.scrollLeft > 1);
    if (hidden > 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  const sizes = new ResizeObserver((seen) => {
    for (const { target } of seen) {
      if (target.matches(PRINTED)) target.classList.toggle("columns", hasColumns(target));
      mark(target);
    }
  });

  const known = new WeakSet();
  const look = (article) => {
    for (const box of article.querySelectorAll(BOXES)) {
      if (known.has(box)) continue;
      known.add(box);
      sizes.observe(box);
      box.addEventListener("scroll", () => mark(box), { passive: true });
    }
    // What the widgets' own code leaves out or gets wrong.
    for (const button of article.querySelectorAll(".widget-toggle-button"))
      button.setAttribute("aria-pressed", button.classList.contains("mod-active"));
  };

  // The names of two of the theme's buttons lack what stands on them.
  const rename = () => {
    for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");
    for (const button of document.querySelectorAll(".theme-switch-button")) {
      const mute = () => {
        for (const icon of button.querySelectorAll(".theme-switch")) {
          icon.removeAttribute("title");
          icon.setAttribute("aria-hidden", "true");
          icon.querySelector("title")?.remove();
        }
      };
      mute();
      new MutationObserver(mute).observe(button, { childList: true }); // icons are drawn later
    }
  };

  // The theme listens to the first button of each sidebar. That is in its top bar, which lab.css
  // hides; the one above the text passes its clicks on.
  const pass = () => {
    for (const side of ["primary", "secondary"]) {
      const [first, ...others] = document.querySelectorAll(`.${side}-toggle`);
      for (const button of others) button.addEventListener("click", () => first.click());
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    rename();
    pass();
    // The excerpt of a page that a search finds is prose: no chart or its table, nothing for print.
    if (typeof Search === "object") {
      const text = Search.htmlToText;
      Search.htmlToText = (html, anchor) => {
        const page = new DOMParser().parseFromString(html, "text/html");
        for (const each of page.querySelectorAll(NO_PROSE)) each.remove();
        return text(page.documentElement.outerHTML, anchor);
      };
    }
    const article = document.querySelector(".bd-article");
    if (!article) return;
    let due = 0; // widgets and formulas come later, in many small changes
    const later = () => {
      cancelAnimationFrame(due);
      due = requestAnimationFrame(() => look(article));
    };
    look(article);
    new MutationObserver(later).observe(article, { attributeFilter: ["class"], childList: true, subtree: true });
  });
})();
