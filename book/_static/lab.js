// What a style sheet can't know about a page: which boxes scroll, and which output is a table.
(() => {
  const BOXES = "pre, .lab div, .pst-scrollable-table-container, mjx-container[display]";

  // A box that scrolls can be reached by keyboard, and shows on which side there is more.
  const mark = (box) => {
    const hidden = box.scrollWidth - box.clientWidth;
    box.classList.toggle("scrolls", hidden > 1);
    box.classList.toggle("more", hidden - box.scrollLeft > 1);
    if (hidden > 1) box.tabIndex = 0;
    else if (box.tabIndex === 0) box.removeAttribute("tabindex");
  };
  const sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => mark(target)));
  const known = new WeakSet();

  const look = (article) => {
    for (const box of article.querySelectorAll(BOXES)) {
      if (known.has(box)) continue;
      known.add(box);
      sizes.observe(box);
      box.addEventListener("scroll", () => mark(box), { passive: true });
      // Printed columns stay columns; printed sentences wrap.
      if (/\S {2,}\S/.test(box.textContent) && box.closest(".cell_output")) box.classList.add("columns");
    }
    // What the widgets' own code leaves out or gets wrong.
    for (const label of article.querySelectorAll('[title="null"]')) label.removeAttribute("title");
    for (const button of article.querySelectorAll(".widget-toggle-button"))
      button.setAttribute("aria-pressed", button.classList.contains("mod-active"));
  };

  document.addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector(".bd-article");
    if (!article) return;
    look(article);
    let due = 0; // widgets and formulas come later, in many small changes
    new MutationObserver(() => {
      cancelAnimationFrame(due);
      due = requestAnimationFrame(() => look(article));
    }).observe(article, { attributeFilter: ["class"], childList: true, subtree: true });
  });

  document.addEventListener("DOMContentLoaded", () => {
    // The names of two of the theme's buttons lack what stands on them.
    for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");
    for (const button of document.querySelectorAll(".theme-switch-button")) {
      const mute = () => {
        for (const icon of button.querySelectorAll(".theme-switch")) {
          icon.removeAttribute("title");
          icon.setAttribute("aria-hidden", "true");
          icon.replaceChildren(...[...icon.children].filter((part) => part.localName !== "title"));
        }
      };
      new MutationObserver(mute).observe(button, { childList: true }); // icons are drawn later
      mute();
    }
    // What is written in a chart is no excerpt of a page that a search finds.
    if (typeof Search === "object") {
      const text = Search.htmlToText;
      Search.htmlToText = (html, anchor) => text(html.replace(/<svg[^]*?<\/svg>/g, ""), anchor);
    }
  });
})();
