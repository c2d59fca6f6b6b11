// Play, stop and a slider over the steps of an episode.

import { element } from "./dom.js";

export class Player {
  // `moved(step)` is called for each step that is shown.
  constructor(label, moved) {
    Object.assign(this, { moved, speed: 30, playing: false });
    this.slider = element("input", { type: "range", min: 0, step: 1, value: 0, "aria-label": label, input: () => moved(this.step) });
    this.button = element("button", { type: "button", click: () => this.play(!this.playing) }, "Play");
  }

  get step() {
    return Number(this.slider.value);
  }

  get last() {
    return Number(this.slider.max);
  }

  go(step) {
    this.slider.value = step;
    this.moved(this.step);
  }

  play(isPlaying) {
    this.playing = isPlaying;
    this.button.textContent = isPlaying ? "Stop" : "Play";
    if (!isPlaying) return;
    if (this.step >= this.last) this.go(0);
    let [before, owed] = [performance.now(), 0];
    const tick = (now) => {
      if (!this.playing) return;
      owed += ((now - before) / 1000) * this.speed;
      before = now;
      if (owed >= 1) this.go(this.step + Math.floor(owed));
      owed %= 1;
      // Another view may be shown by now.
      if (this.step >= this.last || !this.slider.isConnected) this.play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }
}
