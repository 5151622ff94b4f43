'use strict';
/*
 * Whether an answer has the fields that its operation's answers have. Whoever needs more than their types looks for more.
 */

const { BadReply } = require('./errors.js');
const { ANSWERS, FAILURE } = require('./wire.js');

const isMap = (value) => value !== null && typeof value === 'object' && !Array.isArray(value) && !Buffer.isBuffer(value);

const IS = {
  bool: (value) => typeof value === 'boolean',
  int: (value) => (Number.isSafeInteger(value) || typeof value === 'bigint') && value >= 0,
  float: (value) => typeof value === 'number',
  text: (value) => typeof value === 'string',
  nil: (value) => value === null,
  binary: Buffer.isBuffer,
  place: (value) => Array.isArray(value) && value.length === 3 && value.every(IS.int),
  map: isMap,
  array: Array.isArray,
};

/** Whether a value is of a type as docs/wire.md names it. */
function is(value, type) {
  if (type.startsWith('array of ')) return Array.isArray(value) && value.every((one) => is(one, type.slice('array of '.length)));
  if (type.startsWith('map of text to ')) return isMap(value) && Object.values(value).every((one) => is(one, type.slice('map of text to '.length)));
  return type.split(' or ').some((one) => IS[one](value));
}

/** `ok`, the answer to `op`; BadReply if it is none. */
function checked(op, ok) {
  const fields = op.startsWith('file_') && ok.errno !== undefined ? FAILURE : ANSWERS[op];
  for (const [name, type] of Object.entries(fields)) {
    const plain = name.replace('?', '');
    if (ok[plain] === undefined ? plain === name : !is(ok[plain], type)) {
      throw new BadReply(`the daemon broke the protocol: ${plain} in the answer to ${op} is no ${type}`);
    }
  }
  return ok;
}

module.exports = { checked, isMap };
