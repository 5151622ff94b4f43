'use strict';
/*
 * Results, from the fields of an answer. All that a job wrote is untrusted: types and sizes are checked, and nothing is
 * looked up by a name in it.
 */

const { isMap } = require('./answers.js');
const { BadReply, PeerError } = require('./errors.js');
const { BOUNDS: { MAX_LEFT_OUT, MAX_SHOWN, MAX_PLAIN }, IS_TEXT, LIMITS, OUTCOMES, REASONS } = require('./wire.js');

/** How a job ended, and what it wrote. */
class Result {
  constructor(fields) {
    Object.assign(this, fields);
    Object.freeze(this);
  }

  /** It ended by itself, with status 0. */
  get ok() {
    return this.outcome === 'finished' && this.exitCode === 0;
  }

  get stdoutText() {
    return this.stdout.toString('utf8');
  }

  get stderrText() {
    return this.stderr.toString('utf8');
  }
}

function fail(what) {
  throw new PeerError(`a result: ${what}`);
}

const isCount = (value) => value >= 0 && (typeof value === 'bigint' ? value < 2n ** 63n : Number.isSafeInteger(value));
const isText = (value) => typeof value === 'string';

function whole(ok, name, most = Number.MAX_SAFE_INTEGER) {
  const value = ok[name];
  if (!Number.isSafeInteger(value) || value < 0 || value > most) fail(`${name} is out of range`);
  return value;
}

function seconds(ok, name) {
  const value = ok[name];
  if (typeof value !== 'number' || !(value >= 0 && value < 1e12)) fail(`${name} is no time`);
  return value;
}

/** Bytes, or {arena, offset, length} inside one of `arenas`. */
function piece(value, arenas, what) {
  if (Buffer.isBuffer(value)) return value;
  if (Array.isArray(value) && value.length === 3 && value.every((one) => Number.isSafeInteger(one) && one >= 0)) {
    const [arena, offset, length] = value;
    if (arena < arenas.length && offset + length <= arenas[arena]) return { arena, offset, length };
  }
  return fail(`${what} is neither binary nor a place in a memory file`);
}

/** A relative path of plain components, as the daemon promises them. */
function isPlainName(name) {
  return name.length > 0 && name.length <= 1024 && name.split('/').length <= 16 && !/[\p{Cc}\p{Cs}]/u.test(name)
    && name.split('/').every((part) => part !== '' && part !== '.' && part !== '..');
}

function shown(value) {
  if (!Array.isArray(value) || value.length > MAX_SHOWN) fail('results is no short array');
  for (const bundle of value) {
    if (!isMap(bundle) || !Object.keys(bundle).length) fail('results holds something else than maps');
    for (const [type, content] of Object.entries(bundle)) {
      if (!IS_TEXT.has(type) || (IS_TEXT.get(type) ? !isText(content) : !Buffer.isBuffer(content))) {
        fail('results holds no MIME type, or the wrong content');
      }
    }
  }
  return value;
}

function leftOut(value) {
  if (!Array.isArray(value) || value.length > MAX_LEFT_OUT
    || !value.every((one) => Array.isArray(one) && one.length === 2 && isText(one[0]) && REASONS.has(one[1]))) {
    fail('left_out holds something else than a name and a reason');
  }
  return value.map(([name, reason]) => ({ name, reason }));
}

function omitted(value) {
  if (!Array.isArray(value) || value.length !== 2 || !value.every((one) => Number.isSafeInteger(one) && one >= 0)) fail('omitted is no pair of numbers');
  return value;
}

/** The fields of a result; places stand for what is in memory files. */
function parse(ok, arenas) {
  const { outcome, limit = null, denied, degraded, files = Object.create(null), error = null, value = null } = ok;
  if (!OUTCOMES.has(outcome) || !(limit === null || LIMITS.has(limit))) fail('outcome or limit is unknown');
  if (!isMap(denied) || !Object.values(denied).every(isCount)) fail('denied is no map of counts');
  if (!Array.isArray(degraded) || !degraded.every(isText)) fail('degraded holds something else');
  if (!isMap(files) || !Object.keys(files).every(isPlainName)) fail('files holds something else');
  if (typeof ok.truncated !== 'boolean') fail('truncated is neither true nor false');
  if (error !== null && !(isMap(error) && ['type', 'message', 'traceback'].every((name) => isText(error[name])))) fail('error is no map');
  if (!(value === null || (isText(value) && value.length <= MAX_PLAIN))) fail('value is no short text');
  for (const name of ['label', 'hint']) if (ok[name] !== undefined && !isText(ok[name])) fail(`${name} is no text`);
  const [stdoutOmitted, stderrOmitted] = omitted(ok.omitted === undefined ? [0, 0] : ok.omitted);
  const places = Object.create(null);
  for (const [name, one] of Object.entries(files)) places[name] = piece(one, arenas, 'a file');
  return {
    stdout: piece(ok.stdout, arenas, 'stdout'),
    stderr: piece(ok.stderr, arenas, 'stderr'),
    exitCode: whole(ok, 'exit_code', 255),
    outcome,
    limit,
    duration: seconds(ok, 'duration'),
    cpuTime: seconds(ok, 'cpu_time'),
    starved: ok.starved === undefined ? null : seconds(ok, 'starved'),
    memoryPeak: whole(ok, 'memory_peak'),
    denied,
    truncated: ok.truncated,
    stdoutOmitted,
    stderrOmitted,
    degraded,
    error: error === null ? null : { type: error.type, message: error.message, traceback: error.traceback },
    files: places,
    leftOut: leftOut(ok.left_out === undefined ? [] : ok.left_out),
    results: shown(ok.results === undefined ? [] : ok.results),
    value,
    hint: ok.hint === undefined ? '' : ok.hint,
    label: ok.label === undefined ? '' : ok.label,
    job: ok.label === undefined ? 0 : whole(ok, 'job'),
  };
}

/** As `parse`, as BadReply where the answer is wrong. */
function checked(read, ...more) {
  try {
    return read(...more);
  } catch (error) {
    if (error instanceof PeerError) throw new BadReply(`the daemon broke the protocol: ${error.message}`);
    throw error;
  }
}

/** The Result of `reply`, with what lies in its memory files. */
async function resultOf(reply, connection) {
  let fields;
  try {
    fields = checked(parse, reply.ok, reply.arenas);
  } catch (error) {
    if (reply.arenas.length) connection.drop(reply.id);
    throw error;
  }
  if (reply.arenas.length) {
    const into = [];
    for (const name of ['stdout', 'stderr']) if (!Buffer.isBuffer(fields[name])) into.push([fields, name]);
    for (const name of Object.keys(fields.files)) if (!Buffer.isBuffer(fields.files[name])) into.push([fields.files, name]);
    const found = await connection.memory(reply, into.map(([map, name]) => map[name]));
    into.forEach(([map, name], at) => { map[name] = found[at]; });
  }
  return new Result(fields);
}

/** The Result in an answer to process_wait, with output that was read before; null while the process runs. */
function endedOf(ok, stdout = Buffer.alloc(0), stderr = Buffer.alloc(0)) {
  if (typeof ok.over !== 'boolean') throw new BadReply("an answer's over is neither true nor false");
  return ok.over ? new Result(checked(parse, { ...ok, stdout, stderr }, [])) : null;
}

module.exports = { Result, resultOf, endedOf, parse, shown, isPlainName };
