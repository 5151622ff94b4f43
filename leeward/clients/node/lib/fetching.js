'use strict';
/*
 * Fetches by a sandbox's policy: the fields of a request, and what an answer becomes. All that is in one is untrusted.
 */

const { BadReply, FetchFailed, RequestRejected } = require('./errors.js');
const { bytes, known } = require('./fields.js');

/** The policy that a request names. */
function egressOf(egress, allowNetwork) {
  if (allowNetwork && egress) throw new RequestRejected('egress or allowNetwork, which is a policy of its own');
  return allowNetwork ? 'network' : egress;
}

/** The URL and the options of a fetch, which may be one object, `{url, method, headers, body}`. */
function fetchArguments(url, options) {
  if (url === null || typeof url !== 'object' || url instanceof URL) return [url, options];
  const { url: named, ...more } = url;
  if (named === undefined || !Object.hasOwn(url, 'url')) throw new RequestRejected('fetch takes a URL, or an object with the URL as `url`');
  if (Object.keys(options).length) throw new RequestRejected('fetch takes a URL and options, or one object with both');
  return [named, more];
}

/** The fields of a sandbox_fetch request. `headers` is an object, a map or pairs. */
function fetchFields(url, options) {
  const { method = 'GET', headers = [], body } = known('fetch', options, ['method', 'headers', 'body']);
  if (headers === null || typeof headers !== 'object') throw new RequestRejected('headers are an object, or pairs of names and values');
  const pairs = typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers);
  const fields = { url: String(url), method, headers: pairs.map((pair) => [...pair]) };
  if (body !== undefined) fields.body = bytes(body, 'body');
  return fields;
}

const isText = (value) => typeof value === 'string';

/** The response in `reply`, with what lies in its memory file. */
async function fetchedOf(reply, connection) {
  const { ok, arenas } = reply;
  if (isText(ok.failed) && isText(ok.message) && isText(ok.url)) throw new FetchFailed(ok.message, ok.failed, ok.url, ok.sent !== false);
  const { status, headers, history, url, address } = ok;
  const place = ok.body;
  const large = Array.isArray(place) && place.length === 3 && place[0] === 0 && place[1] === 0 && arenas.length === 1 && place[2] === arenas[0];
  const good = Number.isSafeInteger(status) && isText(url) && isText(address) && Array.isArray(history) && history.every(isText)
    && Array.isArray(headers) && headers.every((row) => Array.isArray(row) && row.length === 2 && row.every(isText))
    && (large || (Buffer.isBuffer(place) && !arenas.length));
  if (!good) {
    if (arenas.length) connection.drop(reply.id);
    throw new BadReply('the daemon broke the protocol: an answer is no response of a fetch');
  }
  const body = large ? (await connection.memory(reply, [{ arena: 0, offset: 0, length: place[2] }]))[0] : place;
  return Object.freeze({ status, headers, body, url, history, address, ok: status >= 200 && status < 300 });
}

module.exports = { egressOf, fetchArguments, fetchFields, fetchedOf };
