// The stage: draws a game's frames, from shapes or images, at the available size.

/** A canvas that shows the newest frame. */
export class Stage {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.display = /** @type {any} */ (null);
    this.drawn = 0;
    this.waiting = /** @type {any} */ (null);
    this.head = /** @type {[number, number]|undefined} */ (undefined);
    new ResizeObserver(() => this.ask()).observe(canvas);
  }

  /** @param {any} display View, sky and backdrop of a game drawn from shapes; null for images. */
  prepare(display) {
    this.display = display;
    this.still = null;
  }

  /** @param {any} values @param {ArrayBuffer} image @param {[number, number]} [head] Position of the arrow above the viewer's agent. */
  async show(values, image, head) {
    const picture = values.shapes ? values.shapes : await createImageBitmap(new Blob([image], { type: "image/jpeg" }));
    this.picture?.close?.(); // frees the image's memory without waiting for the garbage collector
    this.picture = picture;
    this.head = head;
    this.ask();
  }

  /** Draw at the next screen refresh; if several frames arrive before that, only the last one appears. */
  ask() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    if (!this.picture) return;
    const shapes = Array.isArray(this.picture);
    if (shapes && !this.display) return;
    const ratio = shapes ? this.display.view[2] / this.display.view[3] : this.picture.width / this.picture.height;
    this.canvas.style.aspectRatio = String(ratio);
    /** @type {HTMLElement|null} */ (this.canvas.closest(".watch"))?.style.setProperty("--ratio", String(ratio));
    const width = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio)), height = Math.max(1, Math.round(width / ratio));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.still = null;
    }
    const pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    if (shapes) {
      pen.drawImage(this.backdrop(width, height), 0, 0);
      this.paint(pen, width, height, this.picture);
      if (this.head) this.point(pen, width, height, this.head);
    } else {
      pen.imageSmoothingEnabled = this.picture.width > 200; // an observation is small, and its pixels should stay visible
      pen.drawImage(this.picture, 0, 0, width, height);
    }
    this.drawn++;
    this.canvas.dataset.drawn = String(this.drawn);
  }

  /** The static background, drawn once for each size. @param {number} width @param {number} height */
  backdrop(width, height) {
    if (this.still) return this.still;
    this.still = document.createElement("canvas");
    this.still.width = width;
    this.still.height = height;
    const pen = /** @type {CanvasRenderingContext2D} */ (this.still.getContext("2d"));
    const sky = pen.createLinearGradient(0, 0, 0, height);
    this.display.sky.forEach((/** @type {string} */ colour, /** @type {number} */ at) => sky.addColorStop(at, colour));
    pen.fillStyle = sky;
    pen.fillRect(0, 0, width, height);
    this.paint(pen, width, height, this.display.backdrop);
    return this.still;
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {any[]} shapes */
  paint(pen, width, height, shapes) {
    const [left, bottom, wide, high] = this.display.view;
    pen.save();
    pen.setTransform(width / wide, 0, 0, -height / high, (-left * width) / wide, height + (bottom * height) / high);
    pen.lineCap = pen.lineJoin = "round";
    for (const [kind, ...shape] of shapes) {
      pen.beginPath();
      if (kind === "disc") {
        const [x, y, rx, ry, fill, line, stroke] = shape;
        pen.ellipse(x, y, rx, ry, 0, 0, 2 * Math.PI);
        this.ink(pen, fill, line, stroke);
      } else {
        const [points, colour, stroke] = shape;
        for (const [x, y] of points) pen.lineTo(x, y);
        if (kind === "area") this.ink(pen, colour, "", 0);
        else this.ink(pen, null, colour, stroke);
      }
    }
    pen.restore();
  }

  /** An arrow above an agent. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {[number, number]} head */
  point(pen, width, height, [x, y]) {
    const [left, bottom, wide, high] = this.display.view, size = width / 70;
    const across = ((x - left) / wide) * width, tip = height - ((y - bottom) / high) * height - size / 2;
    pen.beginPath();
    for (const [dx, dy] of [[0, 0], [-size, -1.4 * size], [size, -1.4 * size]]) pen.lineTo(across + dx, tip + dy);
    pen.closePath();
    this.ink(pen, "#fff", "#2a2834", size / 5);
  }

  /** @param {CanvasRenderingContext2D} pen @param {string|null} fill @param {string} line @param {number} width */
  ink(pen, fill, line, width) {
    if (fill) {
      pen.fillStyle = fill;
      pen.fill();
    }
    if (line) {
      pen.strokeStyle = line;
      pen.lineWidth = width;
      pen.stroke();
    }
  }
}
