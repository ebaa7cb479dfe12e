// What is wrong with the page as it is laid out now, a list of complaints for each kind.
() => {
  const name = (node) => `${node.tagName.toLowerCase()}.${node.getAttribute("class") || ""} ${node.textContent.trim().slice(0, 60)}`;
  const unseen = (node) => node.closest(".skip-link, .unseen") || !node.checkVisibility();
  const scrolls = (node) => {
    for (let each = node.parentElement; each; each = each.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(each).overflowX)) return true;
    }
    return false;
  };
  const elements = [...document.body.querySelectorAll("*")].filter((node) => !unseen(node));
  const svgs = elements.filter((node) => node.tagName === "svg");
  const html = elements.filter((node) => !node.closest("svg") && !["SCRIPT", "STYLE", "OPTION"].includes(node.tagName));

  const beyond = html.filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1) && !scrolls(node);
  });
  const cut = html.filter((node) => {
    const style = getComputedStyle(node);
    return ["hidden", "clip"].includes(style.overflowX) && node.scrollWidth > node.clientWidth + 1;
  });
  const labels = svgs.flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
    });
  });

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const [dark, light] = [page, luminance(colour)].sort((one, other) => one - other);
    return (light + 0.05) / (dark + 0.05);
  };
  const quiet = getComputedStyle(document.documentElement).getPropertyValue("--figure-grid").trim();
  canvas.fillStyle = quiet;
  const grid = canvas.fillStyle;
  const faint = new Set();
  for (const svg of svgs) {
    for (const text of svg.querySelectorAll("text")) {
      const fill = getComputedStyle(text).fill;
      if (contrast(fill) < 4.5) faint.add(`text ${fill}`);
    }
    for (const mark of svg.querySelectorAll("path, use, rect, line")) {
      if (mark.closest("defs, clipPath, text")) continue;
      for (const property of ["stroke", "fill"]) {
        const style = getComputedStyle(mark);
        const colour = style[property];
        canvas.fillStyle = colour;
        const opacity = style[`${property}Opacity`] * style.opacity;
        // Grid lines and areas behind the data are no information of their own.
        if (colour === "none" || canvas.fillStyle === grid || opacity < 1) continue;
        if (contrast(colour) < 3) faint.add(`${property} ${colour}`);
      }
    }
  }
  return {
    "wider than the window": document.scrollingElement.scrollWidth > innerWidth ? [document.scrollingElement.scrollWidth] : [],
    "beyond the edge": beyond.map(name),
    "cut off": cut.map(name),
    "labels outside their figure": labels.map((text) => text.textContent.trim()),
    "too faint in a figure": [...faint],
  };
}
