'use strict';
/*
 * MessagePack, as far as the wire has it: docs/wire.md, "Frames". A decoder gives a value or one PeerError, and takes no
 * memory that the bytes don't stand for. Maps become objects without a prototype, binary becomes Buffers, and whole
 * numbers that a JavaScript number can't hold become BigInts.
 */

const { PeerError } = require('./errors.js');
const { MAX_DEPTH, MAX_ENTRIES, MAX_VALUES, MAX_KEY } = require('./wire.js').BOUNDS;

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
    this.values = 0;
  }

  /** Where `count` bytes begin, which are there. */
  take(count) {
    const start = this.at;
    if (count > this.data.length - start) throw new PeerError('a value is cut off');
    this.at = start + count;
    return start;
  }

  value(depth) {
    if (++this.values > MAX_VALUES) throw new PeerError(`more than ${MAX_VALUES} values`);
    const { data } = this;
    const head = data[this.take(1)];
    if (head < 0x80) return head;
    if (head >= 0xe0) return head - 0x100;
    if (head < 0x90) return this.map(head & 0x0f, depth);
    if (head < 0xa0) return this.array(head & 0x0f, depth);
    if (head < 0xc0) return this.text(head & 0x1f);
    switch (head) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.binary(data[this.take(1)]);
      case 0xc5: return this.binary(data.readUInt16BE(this.take(2)));
      case 0xc6: return this.binary(data.readUInt32BE(this.take(4)));
      case 0xca: return data.readFloatBE(this.take(4));
      case 0xcb: return data.readDoubleBE(this.take(8));
      case 0xcc: return data[this.take(1)];
      case 0xcd: return data.readUInt16BE(this.take(2));
      case 0xce: return data.readUInt32BE(this.take(4));
      case 0xcf: return plain(data.readBigUInt64BE(this.take(8)));
      case 0xd0: return data.readInt8(this.take(1));
      case 0xd1: return data.readInt16BE(this.take(2));
      case 0xd2: return data.readInt32BE(this.take(4));
      case 0xd3: return plain(data.readBigInt64BE(this.take(8)));
      case 0xd9: return this.text(data[this.take(1)]);
      case 0xda: return this.text(data.readUInt16BE(this.take(2)));
      case 0xdb: return this.text(data.readUInt32BE(this.take(4)));
      case 0xdc: return this.array(data.readUInt16BE(this.take(2)), depth);
      case 0xdd: return this.array(data.readUInt32BE(this.take(4)), depth);
      case 0xde: return this.map(data.readUInt16BE(this.take(2)), depth);
      case 0xdf: return this.map(data.readUInt32BE(this.take(4)), depth);
      default: throw new PeerError(`a value begins with 0x${head.toString(16)}, which the wire hasn't`);
    }
  }

  binary(length) {
    const start = this.take(length);
    return Buffer.from(this.data.subarray(start, start + length)); // its own memory: the frame's is let go
  }

  text(length) {
    const start = this.take(length);
    try {
      return utf8.decode(this.data.subarray(start, start + length));
    } catch {
      throw new PeerError("text isn't UTF-8");
    }
  }

  inner(count, depth) {
    if (depth >= MAX_DEPTH) throw new PeerError(`maps and arrays are more than ${MAX_DEPTH} deep`);
    if (count > MAX_ENTRIES) throw new PeerError(`${count} entries in one map or array`);
    return depth + 1;
  }

  array(count, depth) {
    const below = this.inner(count, depth);
    const found = [];
    for (let n = 0; n < count; n++) found.push(this.value(below));
    return found;
  }

  map(count, depth) {
    const below = this.inner(count, depth);
    const found = Object.create(null);
    for (let n = 0; n < count; n++) {
      const key = this.value(below);
      if (typeof key !== 'string' || key.length > MAX_KEY) throw new PeerError('a key is no short text');
      if (key in found) throw new PeerError('a key occurs twice');
      found[key] = this.value(below);
    }
    return found;
  }
}

function plain(number) {
  return number >= Number.MIN_SAFE_INTEGER && number <= Number.MAX_SAFE_INTEGER ? Number(number) : number;
}

/** The one value that `data` is. */
function decode(data) {
  const reader = new Reader(data);
  const value = reader.value(0);
  if (reader.at !== data.length) throw new PeerError('bytes follow the value');
  return value;
}

/** The values that `data` is one after the other, each decoded when it is asked for. */
function* decodeAll(data) {
  for (let at = 0; at < data.length;) {
    const reader = new Reader(data.subarray(at));
    yield reader.value(0);
    at += reader.at;
  }
}

class Writer {
  constructor() {
    this.parts = [];
  }

  head(size, write) {
    const head = Buffer.allocUnsafe(size);
    write(head);
    this.parts.push(head);
  }

  sized(length, small, tags) {
    if (small && length < small.below) this.parts.push(Buffer.from([small.tag | length]));
    else if (tags[0] && length < 0x100) this.parts.push(Buffer.from([tags[0], length]));
    else if (length < 0x10000) this.head(3, (head) => { head[0] = tags[1]; head.writeUInt16BE(length, 1); });
    else if (length < 0x100000000) this.head(5, (head) => { head[0] = tags[2]; head.writeUInt32BE(length, 1); });
    else throw new TypeError(`${length} bytes are too many`);
  }

  number(value) {
    if (!Number.isInteger(value) || Object.is(value, -0)) {
      this.head(9, (head) => { head[0] = 0xcb; head.writeDoubleBE(value, 1); });
    } else if (!Number.isSafeInteger(value)) {
      throw new TypeError(`${value} is no whole number that can be told exactly; a BigInt can`);
    } else if (value >= 0 && value < 0x80) {
      this.parts.push(Buffer.from([value]));
    } else if (value < 0 && value >= -0x20) {
      this.parts.push(Buffer.from([value + 0x100]));
    } else if (value >= -0x80000000 && value <= 0xffffffff) {
      this.head(5, (head) => {
        head[0] = value < 0 ? 0xd2 : 0xce;
        if (value < 0) head.writeInt32BE(value, 1); else head.writeUInt32BE(value, 1);
      });
    } else {
      this.bigint(BigInt(value));
    }
  }

  bigint(value) {
    if (value < -(2n ** 63n) || value >= 2n ** 64n) throw new TypeError(`${value} has more than 64 bits`);
    this.head(9, (head) => {
      head[0] = value < 0n ? 0xd3 : 0xcf;
      if (value < 0n) head.writeBigInt64BE(value, 1); else head.writeBigUInt64BE(value, 1);
    });
  }

  value(value, depth) {
    if (depth > MAX_DEPTH) throw new TypeError(`maps and arrays are more than ${MAX_DEPTH} deep`);
    switch (typeof value) {
      case 'boolean': this.parts.push(Buffer.from([value ? 0xc3 : 0xc2])); return;
      case 'number': this.number(value); return;
      case 'bigint': this.bigint(value); return;
      case 'string': this.text(value); return;
      case 'object': break;
      default: throw new TypeError(`a ${typeof value} can't be sent`);
    }
    if (value === null) {
      this.parts.push(Buffer.from([0xc0]));
    } else if (ArrayBuffer.isView(value)) {
      const data = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
      this.sized(data.length, null, [0xc4, 0xc5, 0xc6]);
      this.parts.push(data);
    } else if (Array.isArray(value)) {
      this.sized(value.length, { below: 16, tag: 0x90 }, [0, 0xdc, 0xdd]);
      for (const item of value) this.value(item, depth + 1);
    } else {
      const entries = Object.entries(value).filter(([, item]) => item !== undefined);
      this.sized(entries.length, { below: 16, tag: 0x80 }, [0, 0xde, 0xdf]);
      for (const [key, item] of entries) {
        this.text(key);
        this.value(item, depth + 1);
      }
    }
  }

  text(value) {
    const data = Buffer.from(value, 'utf8');
    this.sized(data.length, { below: 32, tag: 0xa0 }, [0xd9, 0xda, 0xdb]);
    this.parts.push(data);
  }
}

/** `value` as one Buffer. A property that is undefined is left out. Throws TypeError for what can't be sent. */
function encode(value) {
  const writer = new Writer();
  writer.value(value, 0);
  return Buffer.concat(writer.parts);
}

module.exports = { decode, decodeAll, encode, MAX_DEPTH, MAX_ENTRIES, MAX_VALUES };
