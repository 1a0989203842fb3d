// A small game: a paddle catches falling fruit. This module knows nothing about learning, pages or sockets.

export const FRUITS = 10; // per episode

export class Catch {
  constructor(random = Math.random) {
    this.random = random;
    this.speed = 1;
    this.begin();
  }

  begin() {
    this.paddle = 0; // from -1 to 1, like all positions
    this.left = FRUITS;
    this.drop();
  }

  drop() {
    this.x = 2 * this.random() - 1;
    this.y = 1;
  }

  observe() {
    return [this.paddle, this.x - this.paddle, this.y];
  }

  // Move the paddle by -1, 0 or 1; return the reward, and whether the episode is over.
  step(move) {
    this.paddle = Math.max(-1, Math.min(1, this.paddle + 0.12 * move));
    this.y -= 0.1 * this.speed;
    if (this.y > -1) return [0, false];
    const reward = Math.abs(this.x - this.paddle) < 0.25 ? 1 : -1;
    this.left -= 1;
    this.drop();
    return [reward, this.left === 0];
  }
}
