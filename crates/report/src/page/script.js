(() => {
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip');
const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const number = (value) => {
  if (value === 0) return '0';
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
};
const count = (value) => Math.round(value).toLocaleString('en');
const time = (seconds) => {
  const whole = Math.round(seconds);
  if (whole < 60) return number(Math.round(seconds * 10) / 10) + ' s';
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([size]) => whole >= size);
  return parts.slice(first, first + 2)
    .map(([size, unit], at) => Math.floor((at ? whole % parts[first][0] : whole) / size) + ' ' + unit).join(' ');
};
const place = (x, y, target) => {
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  if (innerWidth < 600) {
    // Beside the finger there is no room: it stands above what it tells of, or below.
    const above = target.top - box.height - 6;
    tip.style.left = Math.max(8, Math.min(x - box.width / 2, innerWidth - box.width - 8)) + 'px';
    tip.style.top = (above > 48 ? above : target.bottom + 6) + 'px';
    return;
  }
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  tip.style.left = Math.max(8, Math.min(left, innerWidth - box.width - 8)) + 'px';
  tip.style.top = Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8)) + 'px';
};
const hide = () => { tip.hidden = true; };
// The index of the number that is nearest, of a row that rises.
const nearest = (row, value) => {
  let low = 0, high = row.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle] < value) low = middle + 1; else high = middle;
  }
  return low > 0 && value - row[low - 1] < row[low] - value ? low - 1 : low;
};
const follow = (target, show, leave, keys) => {
  target.addEventListener('pointermove', show);
  target.addEventListener('pointerdown', show);
  target.addEventListener('pointerleave', leave);
  target.addEventListener('blur', leave);
  target.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') leave();
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step && keys(step)) event.preventDefault();
  });
};

for (const figure of document.querySelectorAll('[data-chart]')) {
  const chart = data.charts[figure.dataset.chart];
  if (!chart) continue;
  const hidden = new Set();
  for (const key of figure.querySelectorAll('.key[data-lines]')) {
    const button = element('button', 'key');
    button.type = 'button';
    button.title = 'show or hide';
    button.setAttribute('aria-pressed', 'true');
    button.append(...key.childNodes);
    key.replaceWith(button);
    const lines = key.dataset.lines.split(',').map(Number);
    button.addEventListener('click', () => {
      const gone = !hidden.has(lines[0]);
      button.setAttribute('aria-pressed', String(!gone));
      for (const line of lines) {
        if (gone) hidden.add(line); else hidden.delete(line);
        for (const drawn of figure.querySelectorAll(`g[data-line="${line}"]`)) drawn.classList.toggle('gone', gone);
      }
    });
  }
  for (const plot of figure.querySelectorAll('.plot')) {
    const [x0, x1, y0, y1] = ['x0', 'x1', 'y0', 'y1'].map((name) => Number(plot.dataset[name]));
    const isLog = plot.parentElement.classList.contains('log');
    const up = (y) => isLog ? Math.log(y / y0) / Math.log(y1 / y0) : (y - y0) / (y1 - y0);
    const across = (x) => (x - x0) / (x1 - x0);
    let drawn = [], at = null;
    const leave = () => { for (const one of drawn) one.remove(); drawn = []; hide(); };
    const show = (x, pointerY) => {
      leave();
      at = x;
      const points = chart.lines.map((line, index) => {
        if (hidden.has(index) || !line.x.length) return null;
        const point = nearest(line.x, x);
        return { line, x: line.x[point], y: line.y[point] };
      }).filter(Boolean);
      if (!points.length) return;
      const main = points.reduce((best, point) => Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best);
      const name = (value) => chart.x === 'time' ? time(value) : 'step ' + count(value);
      const near = chart.marks.filter((mark) => Math.abs(across(mark[0]) - across(x)) < 0.012).slice(0, 4);
      tip.replaceChildren(element('p', 'head', name(main.x)));
      for (const point of points) {
        const row = element('p');
        const label = element('span');
        const colour = element('i', 'c' + point.line.colour);
        label.append(colour, point.line.name + (point.x === main.x ? '' : ` (${name(point.x)})`));
        row.append(label, element('b', '', number(point.y)));
        tip.append(row);
        const dot = element('span', 'dot c' + point.line.colour);
        dot.style.left = 100 * Math.min(1, Math.max(0, across(point.x))) + '%';
        dot.style.bottom = 100 * Math.min(1, Math.max(0, up(point.y))) + '%';
        drawn.push(dot);
      }
      for (const mark of near) tip.append(element('p', 'event', `${mark[1]}, step ${count(mark[0])}: ${mark[2]}`));
      const cross = element('span', 'cross');
      cross.style.left = 100 * across(main.x) + '%';
      drawn.push(cross);
      plot.append(...drawn);
      const box = plot.getBoundingClientRect();
      place(box.left + across(main.x) * box.width, pointerY ?? box.top + box.height / 2, box);
    };
    follow(plot, (event) => {
      const box = plot.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      show(x0 + share * (x1 - x0), event.clientY);
    }, leave, ([step]) => {
      if (!step) return false;
      show(Math.min(x1, Math.max(x0, (at ?? x0) + step * (x1 - x0) / 100)));
      return true;
    });
  }
}

for (const shown of document.querySelectorAll('[data-map]')) {
  const map = data.maps[shown.dataset.map];
  if (!map || !map.rows.length) continue;
  const cells = shown.querySelector('.cells');
  const columns = map.values[0].length;
  let at = [0, 0];
  const show = (column, row, x, y) => {
    at = [column, row];
    const from = map.from + column * map.width, value = map.values[row][column];
    const steps = map.width === 1 ? 'step ' + count(from) : `steps ${count(from)} to ${count(from + map.width - 1)}`;
    const line = element('p');
    line.append(element('span', '', 'rank ' + map.rows[row]),
      element('b', '', value === null ? 'took no part' : `${number(value)} ${map.unit}`));
    tip.replaceChildren(element('p', 'head', steps), line);
    place(x, y, cells.getBoundingClientRect());
  };
  const middle = (column, row) => {
    const box = cells.getBoundingClientRect();
    show(column, row, box.left + (column + 0.5) / columns * box.width, box.top + (row + 0.5) / map.rows.length * box.height);
  };
  const inside = (value, most) => Math.min(most - 1, Math.max(0, value));
  follow(cells, (event) => {
    const box = cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    const row = Math.floor((event.clientY - box.top) / box.height * map.rows.length);
    show(inside(column, columns), inside(row, map.rows.length), event.clientX, event.clientY);
  }, hide, ([x, y]) => {
    middle(inside(at[0] + x, columns), inside(at[1] + y, map.rows.length));
    return true;
  });
}
addEventListener('scroll', hide, { passive: true });
})();
