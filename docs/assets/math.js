// Typeset what pymdownx.arithmatex marks as mathematics. KaTeX and its fonts are in assets/katex: nothing is fetched.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const tex = element.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
    katex.render(tex, element, { displayMode: element.tagName === "DIV", throwOnError: true });
  }
});
