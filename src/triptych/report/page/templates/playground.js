const form = document.querySelector("form.ask");
form?.querySelectorAll("textarea").forEach(box => box.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}));
// Another task is asked what is in the form, sent or not.
document.querySelectorAll("nav.switch a").forEach(link => link.addEventListener("click", event => {
  if (!form?.elements.text?.value.trim()) return;
  event.preventDefault();
  form.elements.group.value = link.dataset.group;
  form.requestSubmit();
}));

// In a conversation each model's answer is shown as it is written; then the page that has all of it is asked for.
const talks = [...document.querySelectorAll(".talk")];
form?.addEventListener("submit", async event => {
  const text = form.querySelector("textarea")?.value ?? "";
  if (!talks.length || !text.trim()) return;
  event.preventDefault();
  const fields = new FormData(form);
  form.querySelectorAll("textarea, button").forEach(part => { part.disabled = true; });
  for (const talk of talks) {
    const messages = [...talk.children].map(box => ({
      role: box.classList.contains("user") ? "user" : "assistant", content: box.querySelector("i") ? "" : box.textContent,
    }));
    messages.push({role: "user", content: text});
    const box = kind => Object.assign(document.createElement("div"), {className: kind, dir: "auto"});
    const asked = talk.appendChild(box("user")), answer = talk.appendChild(box("assistant prediction"));
    asked.textContent = text;
    const response = await fetch("/reply", {
      method: "POST", headers: {"Content-Type": "application/json"},
      body: JSON.stringify({
        group: fields.get("group"), model: talk.closest("article").dataset.model, messages,
        temperature: fields.get("temperature") || 0, seed: fields.get("seed") || 0,
      }),
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) answer.textContent += part.value;
  }
  location.assign(`?${new URLSearchParams(fields)}`);
});

// A sound, or an image, is sent as it is; what is recorded, as a file of samples.
const notice = document.querySelector("form.ask [role=status]");
async function send(content, kind) {
  notice.textContent = "Sending";
  const response = await fetch(`/${kind}`, {method: "POST", body: content}), said = await response.text();
  if (!response.ok) {
    notice.textContent = said;
    return;
  }
  form.elements.file.value = said;
  form.requestSubmit();
}
form?.querySelector("[type=file]")?.addEventListener("change", event => send(event.target.files[0], event.target.dataset.kind));

function toWav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (place, text) => [...text].forEach((letter, i) => view.setUint8(place + i, letter.charCodeAt(0)));
  write(0, "RIFF"), view.setUint32(4, 36 + 2 * samples.length, true), write(8, "WAVEfmt ");
  view.setUint32(16, 16, true), view.setUint16(20, 1, true), view.setUint16(22, 1, true);
  view.setUint32(24, rate, true), view.setUint32(28, 2 * rate, true), view.setUint16(32, 2, true);
  view.setUint16(34, 16, true), write(36, "data"), view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return view.buffer;
}

const recording = form?.querySelector("button.record");
let recorder = null;
recording?.addEventListener("click", async () => {
  if (recorder) {
    recorder.stop();
    return;
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({audio: true});
  } catch (error) {
    notice.textContent = `No recording: ${error.message}`;
    return;
  }
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", event => parts.push(event.data));
  recorder.addEventListener("stop", async () => {
    stream.getTracks().forEach(track => track.stop());
    const heard = await new AudioContext().decodeAudioData(await new Blob(parts).arrayBuffer());
    send(toWav(heard.getChannelData(0), heard.sampleRate), "audio");
  });
  recorder.start();
  recording.setAttribute("aria-pressed", "true");
  recording.textContent = "Stop";
  notice.textContent = "Recording";
});
