'use strict';
// A click on a column head sorts the table: numbers by value, texts alphabetically. A second click reverses the order.
for (const button of document.querySelectorAll('th button')) {
  button.addEventListener('click', () => {
    const head = button.closest('th'), table = button.closest('table');
    const falling = head.getAttribute('aria-sort') === 'ascending';
    for (const other of head.parentNode.children) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
    const key = row => {
      const cell = row.children[head.cellIndex];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const compare = (left, right) => {
      const [a, b] = [key(left), key(right)];
      // Empty cells come last in either order.
      if (a === '' || b === '') return (a === '') - (b === '');
      const order = typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
      return falling ? -order : order;
    };
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...rows);
  });
}
