// Tables are sorted by the column whose heading is clicked; a second click turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const key = (row) => row.cells[column];
      rows.sort((one, two) => {
        const a = key(one).dataset.v, b = key(two).dataset.v;
        if (head.classList.contains("n")) {
          if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
          return (down ? -1 : 1) * (Number(a) - Number(b));
        }
        return (down ? -1 : 1) * key(one).textContent.localeCompare(key(two).textContent);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
