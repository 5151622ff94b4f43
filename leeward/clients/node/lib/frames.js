'use strict';
/*
 * Frames on a stream: four bytes of length, then one map. Lengths are checked before anything is kept.
 */

const { PeerError } = require('./errors.js');
const { MAX_REPLY, MAX_REQUEST } = require('./wire.js').BOUNDS;

class FrameReader {
  constructor() {
    this.parts = [];
    this.size = 0;
    this.need = -1; // bytes of the payload, once its header is here
  }

  /** The payloads that are complete with `data`. */
  * feed(data) {
    this.parts.push(data);
    this.size += data.length;
    while (true) {
      if (this.need < 0) {
        if (this.size < 4) return;
        this.need = this.pull(4).readUInt32BE(0);
        if (this.need > MAX_REPLY) throw new PeerError(`a frame of ${this.need} bytes`);
      }
      if (this.size < this.need) return;
      const payload = this.pull(this.need);
      this.need = -1;
      yield payload;
    }
  }

  /** The next `count` bytes, which are there. */
  pull(count) {
    const all = this.parts.length === 1 ? this.parts[0] : Buffer.concat(this.parts, this.size);
    this.parts = count < all.length ? [all.subarray(count)] : [];
    this.size -= count;
    return all.subarray(0, count);
  }
}

/** The header of a frame with `length` bytes. */
function header(length) {
  if (length > MAX_REQUEST) throw new TypeError(`the request has ${length} bytes; at most ${MAX_REQUEST} are taken`);
  const head = Buffer.allocUnsafe(4);
  head.writeUInt32BE(length, 0);
  return head;
}

module.exports = { FrameReader, header, MAX_REPLY, MAX_REQUEST };
