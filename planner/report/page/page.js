"use strict";
{
  const text = document.getElementById("document").textContent;
  const zoom = document.getElementById("zoom");
  const lanes = document.getElementById("lanes");
  zoom.addEventListener("input", () => {
    const view = lanes.parentElement;
    const middle = (view.scrollLeft + view.clientWidth / 2) / lanes.offsetWidth;
    lanes.style.setProperty("--zoom", String(2 ** Number(zoom.value)));
    lanes.classList.toggle("near", Number(zoom.value) >= 3);
    view.scrollLeft = middle * lanes.offsetWidth - view.clientWidth / 2;
  });
  const details = document.getElementById("json");
  details.addEventListener("toggle", () => {
    const shown = document.getElementById("json-text");
    if (details.open && !shown.textContent) shown.textContent = text;
  });
  const save = document.getElementById("save");
  save.hidden = false;
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "report.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
