// What Furo and Sphinx leave out for those who hear a page, or move through it by keyboard.
addEventListener("DOMContentLoaded", () => {
  const all = selector => document.querySelectorAll(selector);
  document.querySelector(".sidebar-drawer").ariaLabel = "all pages";
  document.querySelector(".toc-drawer").ariaLabel = "on this page";
  all("[role=heading]:not([aria-level])").forEach(heading => { heading.ariaLevel = 2; });
  all(".sig dl").forEach(parameters => { parameters.role = "list"; });  // has no terms
  all(".sig dd").forEach(parameter => { parameter.role = "listitem"; });
  // What opens the drawers is a label of a check box that is never drawn.
  all(".nav-overlay-icon > .icon, .toc-overlay-icon > .icon").forEach(button => {
    const {control} = button.parentElement;
    Object.assign(button, {role: "button", tabIndex: 0, ariaLabel: control.ariaLabel, ariaExpanded: control.checked});
    control.addEventListener("change", () => { button.ariaExpanded = control.checked; });
    button.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
  });
  // What is wider than its box is scrolled by the arrow keys while it has the focus.
  const boxes = new ResizeObserver(entries => entries.forEach(({target: box}) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }));
  all(".highlight pre, .table-wrapper, .math-wrapper").forEach(box => boxes.observe(box));
});
