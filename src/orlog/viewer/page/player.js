// Play, stop and a slider over the steps of an episode.

import { element } from "./dom.js";

export class Player {
  // `moved(step)` is called for each step that is shown; `led()` is the step of a film, which leads, or null.
  constructor(label, moved, led = () => null) {
    Object.assign(this, { moved, led, speed: 30, playing: false });
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
    if (!isPlaying && !this.playing) return;
    this.playing = isPlaying;
    this.button.textContent = isPlaying ? "Stop" : "Play";
    this.go(isPlaying && this.step >= this.last ? 0 : this.step); // films begin, or stop
    if (!isPlaying) return;
    let [before, owed] = [performance.now(), 0];
    const tick = (now) => {
      if (!this.playing) return;
      owed += ((now - before) / 1000) * this.speed;
      before = now;
      const step = this.led() ?? this.step + Math.floor(owed);
      owed %= 1;
      if (step !== this.step) this.go(step);
      // Another view may be shown by now.
      if (this.step >= this.last || !this.slider.isConnected) this.play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }
}
