#!/bin/sh
# A page in a real browser: hover, keys, zoom, sorting and the theme switch work, and nothing is requested.
#   sh browser.sh EJK    exit status 77: there is no chromium
# A copy of the page gets a second script, which does what a person does and writes what it saw into the page;
# chromium prints that.
set -eu
ejk=$1
browser=
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && browser=$name && break
done
if [ -z "$browser" ]; then
  echo "skipped: there is no chromium (sh .ci/install checks)"
  exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

dump() { # page, more options
  page=$1
  shift
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --user-data-dir="$folder/profile" \
    --window-size=1200,900 --virtual-time-budget=2000 "$@" --dump-dom "file://$page" 2>/dev/null
}
expect() { # what, the text that must be there
  if grep -qF -- "$2" "$folder/dom"; then return; fi
  echo "FAILED: $1: '$2' is missing; the page saw:"
  grep -A40 '<pre id="seen">' "$folder/dom" || true
  failed=1
}

echo "<p>it starts" > "$folder/start.html"
if ! dump "$folder/start.html" | grep -q "it starts"; then
  echo "skipped: $browser does not start here"
  exit 77
fi
"$ejk" mask-info --mask 'causal & local(left=300, right=none)' --shape 1024x1024 --block 64x64 --html "$folder/page.html" -q

# --- with scripts
cat > "$folder/test.js" <<'JS'
<script>
addEventListener("load", () => {
  const seen = [];
  const say = (what, value) => seen.push(what + ": " + value);
  addEventListener("error", (event) => say("error", event.message));
  const figure = document.querySelector("figure.map"), canvas = figure.querySelector("canvas");
  const readout = () => figure.querySelector(".readout").textContent;
  const point = (type, x, y) => {
    // The plot begins at (64, 6) of the canvas and is as wide as high.
    const side = canvas.clientHeight - 6 - 6 - 44 - 36, box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerId: 1,
      clientX: box.left + 64 + x * side, clientY: box.top + 6 + y * side }));
  };
  say("whole", readout());
  // The pixels of the bar at a row; 72 are the most, 6 blocks.
  const bar = (line) => {
    const side = canvas.clientHeight - 6 - 6 - 44 - 36, row = Math.round(6 + line * side / 16);
    const left = 64 + side + 4;
    const { data } = canvas.getContext("2d").getImageData(left, row, canvas.width - left, 1);
    return data.filter((value, i) => i % 4 === 3 && value > 0).length;
  };
  say("bars", [0.05, 0.95, 1.05, 1.95].map(bar));
  say("label", figure.querySelector(".more").textContent);
  point("pointermove", 0.53, 0.53);
  say("hover", readout());
  point("pointermove", 0.97, 0.03);
  say("corner", readout());
  const pixels = () => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join();
  const before = pixels();
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  say("below", readout());
  point("pointermove", 0.53, 0.53);
  figure.querySelector(".tools button").click();
  say("zoom", figure.dataset.zoom);
  say("redrawn", before !== pixels());
  figure.querySelectorAll(".tools button")[2].click();
  say("all", figure.dataset.zoom);

  const table = [...document.querySelectorAll("table.data")].find((t) => t.textContent.includes("lightest"));
  const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "first query");
  const values = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent.replace(",", ""));
  const button = table.tHead.rows[0].cells[column].querySelector("button");
  button.click();
  say("down", values().join(" "));
  button.click();
  say("up", values().join(" "));

  const background = () => getComputedStyle(document.body).backgroundColor;
  const theme = document.querySelector("#theme");
  theme.click();
  say("light", theme.textContent + " " + background());
  theme.click();
  say("dark", theme.textContent + " " + background());
  say("requests", performance.getEntriesByType("resource").length);
  fetch("file:///etc/hostname").then(() => say("fetch", "done"), () => say("fetch", "refused")).then(() => {
    const out = document.createElement("pre");
    out.id = "seen";
    out.textContent = "\n" + seen.join("\n") + "\n";
    document.body.append(out);
  });
});
</script>
JS
cat "$folder/page.html" "$folder/test.js" > "$folder/tested.html"
dump "$folder/tested.html" > "$folder/dom"
expect "without a pointer the grid is told" "whole: 16 x 16 blocks"
expect "a bar is of its row alone" "bars: 12,12,24,24"
expect "bars have a label" 'label: Bars: blocks other than "empty", at most 6 in a row and 6 in a column.'
expect "a block under the pointer" "hover: queries 512–575, keys 512–575 · block (8, 8) · partial · density 50.8 %"
expect "an empty block" "corner: queries 0–63, keys 960–1,023 · block (0, 15) · empty · density 0 %"
expect "a cursor that keys move" "below: queries 64–127, keys 960–1,023 · block (1, 15)"
expect "zoom" "zoom: 2.00"
expect "the map is drawn anew" "redrawn: true"
expect "back to all blocks" "all: 1.00"
expect "rows sorted down" "down: 448 384 320 128 64 0"
expect "rows sorted up" "up: 0 64 128 320 384 448"
expect "the light theme" "light: theme: light rgb(255, 255, 255)"
expect "the dark theme" "dark: theme: dark rgb(20, 24, 29)"
expect "nothing is requested" "requests: 0"
expect "the page may request nothing" "fetch: refused"
if grep -q "^error:" "$folder/dom"; then
  echo "FAILED: an error in the page's script" && grep "^error:" "$folder/dom"
  failed=1
fi

# --- without scripts: the drawing stands for the map, and all numbers are there
sed "s/script-src 'unsafe-inline'/script-src 'none'/" "$folder/page.html" > "$folder/plain.html"
dump "$folder/plain.html" > "$folder/dom"
expect "the drawing" '<svg xmlns="http://www.w3.org/2000/svg" class="blocks"'
expect "numbers" "blocks skipped"
if grep -q 'class="map live"' "$folder/dom"; then
  echo "FAILED: scripts ran without leave"
  failed=1
fi
[ $failed = 0 ] && echo "hover, keys, zoom, sorting, themes; no request"
exit $failed
