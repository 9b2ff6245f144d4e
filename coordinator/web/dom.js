// DOM construction without HTML strings: text from the server is never parsed as HTML.

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node || typeof child === "string") element.append(child);
  }
  return element;
}

export function el(name, attributes, ...children) {
  return made(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return made(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Updates `old` to match `fresh` and reuses its elements, so that focus, selections and input survive.
export function patch(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const wanted = [...fresh.childNodes], had = [...old.childNodes];
  wanted.forEach((child, at) => {
    const before = had[at];
    if (!before) old.append(child);
    else if (before.nodeName !== child.nodeName || before.id !== child.id) before.replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) {
      if (before.nodeValue !== child.nodeValue) before.nodeValue = child.nodeValue;
    } else patch(before, child);
  });
  for (const surplus of had.slice(wanted.length)) surplus.remove();
}

// A table with a header row. `columns`: [name, class]; the first cell of a row is its header.
export function table(caption, columns, rows) {
  return el("table", null, caption && el("caption", null, caption),
    el("thead", null, el("tr", null, columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)))),
    el("tbody", null, rows.map(cells => el("tr", null, cells.map((cell, at) =>
      el(at ? "td" : "th", { scope: at ? null : "row", class: columns[at][1] }, cell))))));
}

export function section(title, ...children) {
  return el("section", null, el("h2", null, title), children);
}
