// Opens the quickstart's model in chapters: a `<div class="live" data-open="#/…">` around a picture gets a frame with
// docs/live/quickstart.html at that hash. The picture stays for paper, for GitHub, and where no script runs.

const page = new URL("../live/quickstart.html", document.currentScript.src);

for (const place of document.querySelectorAll(".live")) {
  const frame = document.createElement("iframe");
  frame.loading = "lazy"; // fetched when the reader comes near it
  frame.title = place.querySelector("img").alt;
  frame.src = new URL(place.dataset.open, page);
  place.prepend(frame);
}
