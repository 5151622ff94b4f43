'use strict';
/*
 * The files in a sandbox. A process inside does each call, under the sandbox's locks: leeward/client/file_calls.py is the
 * same in Python. Names are bytes: they are given as text (UTF-8) or as Buffers, and come as text, with the bytes beside.
 */

const { getSystemErrorMap } = require('node:util');
const errors = require('./errors.js');
const { bytes, known } = require('./fields.js');
const { MAX_ROWS } = require('./wire.js').BOUNDS;

const { BadReply, EditError, FilesFailed, LeewardError, OSError, RequestRejected, FileNotFoundError, NotADirectoryError } = errors;

const CHUNK = 1 << 20;
const MAX_PATH = 4095;
/** Bytes before a file of a batch: length of its path, mode, size; and before one that was read: errno, size. */
const HEAD = 8;
const FOUND = 6;
const KINDS = new Set(['file', 'folder', 'link', 'other']);
const MOST_READ = 2 ** 30;
const MOST_LISTED = 100000;
const SEARCH_S = 10;
const LONG_S = 120;
const EFBIG = 27;
const E2BIG = 7;

const BY_CODE = {
  ENOENT: FileNotFoundError, EEXIST: errors.FileExistsError, ENOTDIR: NotADirectoryError, EISDIR: errors.IsADirectoryError,
  EACCES: errors.PermissionError, EPERM: errors.PermissionError, ETIMEDOUT: errors.TimeoutError,
};

/** The error for an errno of a file call. */
function systemError(errno, why, path) {
  const [code, text] = getSystemErrorMap().get(-errno) || [`errno ${errno}`, `errno ${errno}`];
  return new (BY_CODE[code] || OSError)(errno, code, why || text, path);
}

/** As `systemError`; errno 0 is for an invalid argument. */
const failure = (errno, why, path) => (errno ? systemError(errno, why, path) : new RequestRejected(why));

/** Takes the error of one file of many; others, and one file too many bytes, are for all. */
const ofOneFile = (wrong, path) => (error) => {
  if (!(error instanceof OSError) || error.code === 'EFBIG') throw error;
  wrong.set(path, error);
};

/** `path` as it goes over the wire. */
function raw(path) {
  const name = typeof path === 'string' ? Buffer.from(path, 'utf8') : bytes(path, 'a path');
  if (!name.length || name.length > MAX_PATH || name.includes(0)) {
    throw new RequestRejected(`${JSON.stringify(String(path).slice(0, 80))} is no path: it is empty, has a NUL, or is longer than ${MAX_PATH} bytes`);
  }
  return name;
}

const shown = (name) => name.toString('utf8');

function bad(what) {
  throw new BadReply(`the daemon broke the protocol: a file call's answer: ${what}`);
}

const isNumber = (value) => typeof value === 'bigint' || Number.isSafeInteger(value);

/** What is by one name: as `fs.Dirent` and `fs.Stats` in one, as far as a sandbox tells. */
class FileInfo {
  constructor([name, kind, mode, size, time, target]) {
    this.name = shown(name);
    this.kind = kind;
    this.mode = mode;
    this.size = Number(size);
    this.mtimeNs = BigInt(time);
    this.target = shown(target);
    Object.defineProperty(this, 'nameBytes', { value: name });
  }

  get mtime() {
    return new Date(Number(this.mtimeNs / 1000000n));
  }

  isFile() {
    return this.kind === 'file';
  }

  isFolder() {
    return this.kind === 'folder';
  }
}

function infoOf(row, name) {
  const good = Array.isArray(row) && row.length === 6 && Buffer.isBuffer(row[0]) && KINDS.has(row[1]) && Number.isSafeInteger(row[2])
    && isNumber(row[3]) && row[3] >= 0 && isNumber(row[4]) && Buffer.isBuffer(row[5]);
  if (!good) bad('a row is of no known kind');
  return new FileInfo(name === undefined ? row : [name, ...row.slice(1)]);
}

/** Pieces of `data`, none larger than a request takes; at least one. */
async function* piecesOf(data) {
  const parts = typeof data === 'string' || ArrayBuffer.isView(data) || data instanceof ArrayBuffer ? [data] : data;
  if (parts === null || typeof parts !== 'object' || !(parts[Symbol.iterator] || parts[Symbol.asyncIterator])) {
    throw new RequestRejected('what is written is text, bytes, or a stream or another iterable of these');
  }
  let some = false;
  for await (const part of parts) {
    const all = bytes(part, 'what is written');
    for (let at = 0; at < all.length; at += CHUNK) {
      some = true;
      yield all.subarray(at, at + CHUNK);
    }
  }
  if (!some) yield Buffer.alloc(0);
}

class Files {
  constructor(sandbox) {
    Object.defineProperty(this, 'sandbox', { value: sandbox });
  }

  async ask(op, fields) {
    const ok = await this.sandbox.ask(op, fields);
    if (ok.errno === undefined) return ok;
    throw failure(ok.errno, ok.why, shown(fields.path || Buffer.from('.')));
  }

  // --- content ----------------------------------------------------------------------

  /** The bytes of a regular file, piece by piece. */
  async* stream(path, options = {}) {
    const { offset = 0, size, lines, limit = Infinity } = known('stream', options, ['offset', 'size', 'lines', 'limit']);
    const name = raw(path);
    const fields = { path: name, offset };
    if (lines !== undefined) [fields.first, fields.last] = lines;
    let told = await this.ask('file_read', { ...fields, size: size === undefined ? CHUNK : Math.max(1, Math.min(size, CHUNK)) });
    const start = Number(told.at);
    const end = size === undefined ? Number(told.end) : Math.min(Number(told.end), start + size);
    let handle = 0;
    try {
      if (end - start > limit) throw systemError(EFBIG, `it has ${end - start} bytes; the limit is ${limit}`, shown(name));
      for (let at = start; ;) {
        handle = told.handle;
        const data = told.data.subarray(0, Math.max(0, end - at));
        at += data.length;
        if (data.length) yield data;
        if (!handle || at >= end || !data.length) return;
        told = await this.ask('file_read', { path: name, handle, offset: at, size: Math.min(CHUNK, end - at) });
      }
    } finally {
      handle = told.handle;
      if (handle) await this.ask('file_close', { handle }).catch(quiet);
    }
  }

  /** What is in a regular file: a Buffer, or text with `encoding`. `lines: [first, last]`, from 1 on. */
  async read(path, options = {}) {
    const { encoding, limit = MOST_READ, ...more } = options;
    const parts = [];
    for await (const part of this.stream(path, { ...more, limit })) parts.push(part);
    const all = Buffer.concat(parts);
    return encoding === undefined ? all : all.toString(encoding);
  }

  /** Write a file, with the folders that lead to it; it takes its place when it is whole. Resolves to its size. */
  async write(path, data, options = {}) {
    const { mode = -1, exclusive = false } = known('write', options, ['mode', 'exclusive']);
    const fields = { path: raw(path), new: exclusive, mode };
    const pieces = piecesOf(data);
    let handle = 0;
    let size = 0;
    try {
      let piece = (await pieces.next()).value;
      while (true) {
        const after = await pieces.next();
        const told = await this.ask('file_write', { ...fields, handle, offset: size, data: piece, more: !after.done });
        size += piece.length;
        handle = after.done ? 0 : told.handle;
        if (after.done) return size;
        piece = after.value;
      }
    } finally {
      if (handle) await this.ask('file_close', { handle }).catch(quiet);
      await pieces.return();
    }
  }

  /** Write many files by one call, each as `write` does. Resolves to the number of bytes. */
  async writeMany(files, options = {}) {
    const { mode = -1 } = known('writeMany', options, ['mode']);
    const wrong = new Map();
    let batch = [];
    let size = 0;
    let filled = 0;
    const send = async () => {
      const { failed } = await this.ask('file_write_many', { data: Buffer.concat(batch.flatMap(({ parts }) => parts)) });
      for (const [number, errno, why] of failed) {
        if (!batch[number]) bad("it is about a file that wasn't sent");
        wrong.set(batch[number].path, failure(errno, why, shown(raw(batch[number].path))));
      }
      batch = [];
      filled = 0;
    };
    for (const [path, data] of files instanceof Map ? files : Object.entries(files)) {
      const [name, content] = [raw(path), bytes(data, 'what is written')];
      const one = HEAD + name.length + content.length;
      if (batch.length && (filled + one > CHUNK || batch.length === MAX_ROWS)) await send();
      if (one > CHUNK) {
        await this.write(path, content, { mode }).catch(ofOneFile(wrong, path));
      } else {
        const head = Buffer.alloc(HEAD);
        head.writeUInt16BE(name.length);
        head.writeInt16BE(mode, 2);
        head.writeUInt32BE(content.length, 4);
        batch.push({ path, parts: [head, name, content] });
        filled += one;
      }
      size += content.length;
    }
    if (batch.length) await send();
    if (wrong.size) throw new FilesFailed(wrong);
    return size;
  }

  /** What is in many regular files, by path: a Map of Buffers. */
  async readMany(paths, options = {}) {
    let { limit = MOST_READ } = known('readMany', options, ['limit']);
    const left = [...new Set(paths)].reverse();
    const wrong = new Map();
    const found = new Map();
    while (left.length) {
      const asked = [];
      for (let size = 0; asked.length < Math.min(left.length, MAX_ROWS);) {
        const name = raw(left[left.length - 1 - asked.length]);
        size += name.length + 1;
        if (size > CHUNK) break;
        asked.push(Buffer.concat([name, Buffer.alloc(1)]));
      }
      const { data } = await this.ask('file_read_many', { paths: Buffer.concat(asked) });
      let answers = 0;
      for (let at = 0; at < data.length; answers += 1) {
        if (at + FOUND > data.length || answers === asked.length) bad('files are cut short, or too many');
        const errno = data.readUInt16BE(at);
        const end = at + FOUND + data.readUInt32BE(at + 2);
        if (end > data.length) bad('files are cut short, or too many');
        const path = left.pop();
        const content = data.subarray(at + FOUND, end);
        at = end;
        if (errno && errno !== EFBIG) {
          wrong.set(path, failure(errno, content.toString(), shown(raw(path))));
          continue;
        }
        const whole = errno ? await this.read(path, { limit }).catch(ofOneFile(wrong, path)) : content;
        if (whole === undefined) continue;
        limit -= whole.length;
        if (limit < 0) throw systemError(EFBIG, 'the files have more bytes than the limit', shown(raw(path)));
        found.set(path, whole);
      }
      if (!answers) bad('files are missing');
    }
    if (wrong.size) throw new FilesFailed(wrong, found);
    return found;
  }

  /** Write at the end of a file, which is made if it isn't there. Resolves to its size then. */
  async append(path, data) {
    let size = 0;
    for await (const piece of piecesOf(data)) size = Number((await this.ask('file_append', { path: raw(path), data: piece })).size);
    return size;
  }

  /** Replace a text that is in a file exactly once; else EditError, and nothing is changed. */
  async edit(path, before, after) {
    const told = await this.ask('file_edit', { path: raw(path), old: bytes(before, 'what is replaced'), new: bytes(after, 'what is there then') });
    if (told.found !== 1) throw new EditError(shown(raw(path)), told.found);
  }

  // --- names ------------------------------------------------------------------------

  /** What is in a folder, by name. */
  async list(path = '.') {
    const name = raw(path);
    const found = [];
    for (let after = Buffer.alloc(0), more = true; more;) {
      const told = await this.ask('file_list', { path: name, after });
      const rows = told.rows.map((row) => infoOf(row));
      if (rows.length && Buffer.compare(rows[0].nameBytes, after) <= 0) bad('a page of a folder repeats names');
      found.push(...rows);
      if (found.length > MOST_LISTED) throw systemError(E2BIG, `it has more than ${MOST_LISTED} entries`, shown(name));
      more = told.more && rows.length > 0;
      if (more) after = rows[rows.length - 1].nameBytes;
    }
    return found;
  }

  /** What is by this name; of a link what it leads to, unless `follow` is false. */
  async stat(path, options = {}) {
    const { follow = true } = known('stat', options, ['follow']);
    const name = raw(path);
    return infoOf((await this.ask('file_stat', { path: name, follow })).row, name);
  }

  async exists(path) {
    try {
      await this.stat(path);
      return true;
    } catch (error) {
      if (error instanceof FileNotFoundError || error instanceof NotADirectoryError) return false;
      throw error;
    }
  }

  async mkdir(path, options = {}) {
    const { parents = true, existOk = false } = known('mkdir', options, ['parents', 'existOk']);
    await this.ask('file_mkdir', { path: raw(path), parents, there: existOk });
  }

  async move(path, to) {
    await this.ask('file_move', { path: raw(path), to: raw(to) });
  }

  async copy(path, to, options = {}) {
    const { timeout = LONG_S } = known('copy', options, ['timeout']);
    await this.ask('file_copy', { path: raw(path), to: raw(to), timeout });
  }

  async remove(path, options = {}) {
    const { recursive = false, missingOk = false, timeout = LONG_S } = known('remove', options, ['recursive', 'missingOk', 'timeout']);
    await this.ask('file_remove', { path: raw(path), recursive, missing: missingOk, timeout });
  }

  /** Paths that match a pattern; the array's `more` says whether there are others. */
  async glob(pattern, options = {}) {
    const { path = '.', limit = MAX_ROWS, timeout = SEARCH_S } = known('glob', options, ['path', 'limit', 'timeout']);
    const told = await this.ask('file_glob', { path: raw(path), pattern: raw(pattern), most: limit, timeout });
    if (!told.names.every(Buffer.isBuffer)) bad('no names');
    return Object.assign(told.names.map(shown), { more: told.more });
  }

  /** Lines in which a regular expression of Python's, or with `literal` a text, is; `more` as for `glob`. */
  async grep(pattern, options = {}) {
    const { path = '.', include = '', literal = false, ignoreCase = false, limit = 1000, timeout = SEARCH_S } = known('grep', options,
      ['path', 'include', 'literal', 'ignoreCase', 'limit', 'timeout']);
    const told = await this.ask('file_grep', {
      path: raw(path), pattern: bytes(pattern, 'a pattern'), include: Buffer.from(include), literal, ignore_case: ignoreCase, most: limit, timeout,
    });
    const good = told.rows.every((row) => Array.isArray(row) && row.length === 3 && Buffer.isBuffer(row[0])
      && Number.isSafeInteger(row[1]) && Buffer.isBuffer(row[2]));
    if (!good) bad('no lines');
    return Object.assign(told.rows.map(([name, line, text]) => ({ path: shown(name), line, text: shown(text) })), { more: told.more });
  }
}

/** A handle that can't be closed goes with the process inside. */
function quiet(error) {
  if (!(error instanceof LeewardError)) throw error;
}

module.exports = { Files, FileInfo, raw };
