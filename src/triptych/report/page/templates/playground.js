const form = document.querySelector("form.ask");
form?.querySelectorAll("textarea").forEach(box => box.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}));
// Another task is asked what is in the form, sent or not.
document.querySelectorAll("nav.switch a").forEach(link => link.addEventListener("click", event => {
  if (!form?.elements.text.value.trim()) return;
  event.preventDefault();
  form.elements.group.value = link.dataset.group;
  form.requestSubmit();
}));
