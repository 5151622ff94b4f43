'use strict';
/*
 * A snapshot of a kernel, and in a file: a line, a head, the bytes, and a hash of all that, as leeward/client/snapshot_files.py
 * has it. A file may be anybody's: its head is decoded within bounds, and the daemon checks what it says.
 */

const { createHash, randomBytes } = require('node:crypto');
const { open, rename, unlink } = require('node:fs/promises');
const path = require('node:path');

const { Calls } = require('./calls.js');
const { decode, encode } = require('./msgpack.js');
const { PeerError, SnapshotFailed } = require('./errors.js');

const FIRST = Buffer.from('leeward snapshot 1\n');
const MOST_HEAD = (256 + 64) << 10;
/** Bytes of one `snapshot_write`, at most. */
const MAX_WRITE = 1 << 20;
const DIGEST = 32;

async function asked(socket, work) {
  const calls = new Calls({ socket });
  try {
    return await work(calls);
  } finally {
    calls.close();
  }
}

/** Reads the file piece by piece, and hashes what it has read. */
class Reader {
  constructor(file) {
    this.file = file;
    this.hash = createHash('sha256');
  }

  async read(size) {
    const data = await this.rest(size);
    if (data.length < size) throw new SnapshotFailed('the file ends too early');
    this.hash.update(data);
    return data;
  }

  /** As many bytes as there are, `size` at most. */
  async rest(size) {
    const data = Buffer.alloc(size);
    let got = 0;
    for (let some = 1; some > 0 && got < size; got += some) some = (await this.file.read(data, got, size - got)).bytesRead;
    return data.subarray(0, got);
  }

  async head() {
    const begun = await this.read(FIRST.length + 4);
    if (!begun.subarray(0, FIRST.length).equals(FIRST)) throw new SnapshotFailed("this file holds no snapshot of leeward's");
    const length = begun.readUInt32BE(FIRST.length);
    if (length > MOST_HEAD) throw new SnapshotFailed("the file's head is too large");
    const packed = await this.read(length);
    let head;
    try {
      head = decode(packed);
    } catch (error) {
      if (!(error instanceof PeerError)) throw error;
      throw new SnapshotFailed("the file's head can't be read");
    }
    const { key, sizes, facts, made } = head && typeof head === 'object' ? head : {};
    if (!key || typeof key !== 'object' || !Array.isArray(sizes) || !sizes.every(Number.isSafeInteger) || !Buffer.isBuffer(facts) || typeof made !== 'number') {
      throw new SnapshotFailed("the file's head isn't that of a snapshot");
    }
    return { key, sizes, facts, made };
  }
}

/** The state of a kernel at one moment, which belongs to the user: kernels in any sandbox may begin with it. */
class Snapshot {
  #socket;

  constructor(socket, { snapshot, size, made, python, packages, lost }) {
    this.#socket = socket;
    Object.assign(this, { id: snapshot, size, made, python, packages, lost });
  }

  /** The snapshot with this id; SnapshotFailed if the user has none. */
  static async find(id, { socket } = {}) {
    return asked(socket, async (calls) => new Snapshot(socket, await calls.call('snapshot_info', { snapshot: id })));
  }

  /** The snapshot in a file, taken into the daemon's memory; SnapshotFailed says what is different here. */
  static async load(file, { socket } = {}) {
    const opened = await open(file, 'r');
    try {
      const reader = new Reader(opened);
      const head = await reader.head();
      const id = await asked(socket, async (calls) => {
        const { snapshot } = await calls.call('snapshot_import', head);
        try {
          let left = head.sizes.reduce((sum, size) => sum + size, 0);
          while (left > 0) {
            const data = await reader.read(Math.min(left, MAX_WRITE));
            left -= data.length;
            if (left <= 0 && !(await reader.rest(DIGEST + 1)).equals(reader.hash.digest())) {
              throw new SnapshotFailed('the file was damaged: its hash is another one');
            }
            await calls.call('snapshot_write', { snapshot, data });
          }
        } catch (error) {
          if (error instanceof SnapshotFailed) await calls.call('snapshot_remove', { snapshot });
          throw error;
        }
        return snapshot;
      });
      return await Snapshot.find(id, { socket });
    } finally {
      await opened.close();
    }
  }

  /** Writes it into a file, which only this user can read; it is there when it is whole. */
  async save(file) {
    const part = path.join(path.dirname(file), `.leeward-snapshot-${randomBytes(8).toString('hex')}`);
    const opened = await open(part, 'wx', 0o600);
    try {
      try {
        await this.#write(opened);
        await opened.sync();
      } finally {
        await opened.close();
      }
      await rename(part, file);
    } catch (error) {
      await unlink(part).catch(() => {});
      throw error;
    }
  }

  async #write(file) {
    const hash = createHash('sha256');
    const write = async (data) => {
      hash.update(data);
      await file.writeFile(data);
    };
    await asked(this.#socket, async (calls) => {
      const { key, sizes } = await calls.call('snapshot_export', { snapshot: this.id });
      const { python, packages, lost, made } = this;
      const head = encode({ key, sizes, made, facts: encode({ python, packages, lost }) });
      const length = Buffer.alloc(4);
      length.writeUInt32BE(head.length);
      await write(Buffer.concat([FIRST, length, head]));
      const size = sizes.reduce((sum, each) => sum + each, 0);
      for (let at = 0; at < size;) {
        const { data } = await calls.call('snapshot_read', { snapshot: this.id, offset: at });
        if (!data.length) throw new PeerError('the snapshot is shorter than it was');
        await write(data);
        at += data.length;
      }
    });
    await file.writeFile(hash.digest());
  }

  /** Frees its memory; kernels that began with it live on. */
  async remove() {
    await asked(this.#socket, (calls) => calls.call('snapshot_remove', { snapshot: this.id }));
  }

  toString() {
    return this.id;
  }
}

module.exports = { Snapshot };
