// Made by ./dev generate
'use strict';

const RESULT = { outcome: 'text', exit_code: 'int', limit: 'text or nil', duration: 'float', cpu_time: 'float', memory_peak: 'int', denied: 'map of text to int', truncated: 'bool', 'omitted?': 'array of int', degraded: 'array of text', error: 'map or nil', 'hint?': 'text', 'starved?': 'float', stdout: 'binary or place', stderr: 'binary or place', 'files?': 'map of text to binary or place', 'results?': 'array of map', 'value?': 'text', 'label?': 'text', 'job?': 'int', 'left_out?': 'array', 'arenas?': 'array of int' };
/** The answer to an operation on files that failed. */
const FAILURE = { errno: 'int', why: 'text' };

/** By operation: the fields of its answer with their types; ? is for those that may be absent. */
const ANSWERS = {
  arena: { slots: 'int', size: 'int', arenas: 'array of int' },
  cancel: { cancelled: 'bool' },
  egress_answer: { taken: 'bool' },
  egress_asks: { events: 'array of map' },
  egress_log: { events: 'array of map', last: 'int', forgotten: 'int' },
  execute: RESULT,
  file_append: { size: 'int' },
  file_close: {},
  file_copy: {},
  file_edit: { found: 'int' },
  file_glob: { names: 'array', more: 'bool' },
  file_grep: { rows: 'array', more: 'bool' },
  file_link: {},
  file_list: { rows: 'array', more: 'bool' },
  file_mkdir: {},
  file_move: {},
  file_read: { data: 'binary', handle: 'int', at: 'int', end: 'int', mode: 'int', time: 'int' },
  file_read_many: { data: 'binary' },
  file_remove: {},
  file_set: {},
  file_stat: { row: 'array' },
  file_walk: { rows: 'array' },
  file_write: { handle: 'int', size: 'int' },
  file_write_many: { failed: 'array' },
  function_answer: { taken: 'bool' },
  function_take: { calls: 'array', over: 'bool' },
  interrupt: { interrupted: 'bool' },
  keep_results: {},
  kept_drop: { dropped: 'bool' },
  kept_read: { data: 'binary' },
  kernel_bind: { session: 'int' },
  kernel_close: {},
  kernel_fork: { kernel: 'int' },
  kernel_interrupt: { interrupted: 'bool' },
  kernel_open: { kernel: 'int' },
  kernel_reset: {},
  kernel_rollback: {},
  kernel_snapshot: { snapshot: 'text', size: 'int', made: 'float', python: 'text', packages: 'map of text to text', lost: 'array of text' },
  output_take: { stdout: 'binary', stderr: 'binary', running: 'bool', over: 'bool' },
  overlay_checkpoint: { name: 'text' },
  overlay_diff: { size: 'int', 'arenas?': 'array of int' },
  overlay_discard: {},
  overlay_read: { size: 'int', 'arenas?': 'array of int' },
  overlay_restore: {},
  ping: { version: 'text', wire: 'int', 'caps?': 'map' },
  process_kill: {},
  process_list: { processes: 'array of map' },
  process_read: { chunks: 'array', over: 'bool', 'outcome?': 'text', 'exit_code?': 'int', 'limit?': 'text or nil', 'duration?': 'float', 'cpu_time?': 'float', 'memory_peak?': 'int', 'denied?': 'map of text to int', 'truncated?': 'bool', 'omitted?': 'array of int', 'degraded?': 'array of text', 'error?': 'map or nil', 'hint?': 'text', 'starved?': 'float' },
  process_resize: { resized: 'bool' },
  process_run: RESULT,
  process_signal: { sent: 'bool' },
  process_start: { process: 'int' },
  process_wait: { over: 'bool', 'outcome?': 'text', 'exit_code?': 'int', 'limit?': 'text or nil', 'duration?': 'float', 'cpu_time?': 'float', 'memory_peak?': 'int', 'denied?': 'map of text to int', 'truncated?': 'bool', 'omitted?': 'array of int', 'degraded?': 'array of text', 'error?': 'map or nil', 'hint?': 'text', 'starved?': 'float' },
  process_write: { written: 'int' },
  recall: { events: 'array of map', last: 'int' },
  sandbox_connect: { socket: 'bool' },
  sandbox_copy: { made: 'int' },
  sandbox_dock: { dock: 'int', socket: 'bool' },
  sandbox_execute: RESULT,
  sandbox_extend: { sandbox: 'text', profile: 'text', environment: 'text', egress: 'text', image: 'text', metadata: 'map of text to text', age: 'float', idle: 'float', unused: 'float', left: 'float', held: 'bool', processes: 'int', calls: 'int', memory_limit: 'int', memory_peak: 'int', memory: 'int', cpu_time: 'float', oom_kills: 'int', forks_refused: 'int', denied: 'map of text to int', 'mounts?': 'array of map', asleep: 'bool', 'layers?': 'array of text', 'checkpoints?': 'array of text' },
  sandbox_fetch: { 'status?': 'int', 'headers?': 'array', url: 'text', 'history?': 'array of text', 'address?': 'text', 'body?': 'binary or place', 'failed?': 'text', 'message?': 'text', 'sent?': 'bool', 'arenas?': 'array of int' },
  sandbox_hide: {},
  sandbox_info: { sandbox: 'text', profile: 'text', environment: 'text', egress: 'text', image: 'text', metadata: 'map of text to text', age: 'float', idle: 'float', unused: 'float', left: 'float', held: 'bool', processes: 'int', calls: 'int', memory_limit: 'int', memory_peak: 'int', memory: 'int', cpu_time: 'float', oom_kills: 'int', forks_refused: 'int', denied: 'map of text to int', 'mounts?': 'array of map', asleep: 'bool', 'layers?': 'array of text', 'checkpoints?': 'array of text' },
  sandbox_kill: {},
  sandbox_list: { sandboxes: 'array of map', more: 'bool', 'last?': 'int' },
  sandbox_open: { sandbox: 'text', idle: 'float', lifetime: 'float' },
  sandbox_pause: {},
  session_close: {},
  session_open: { session: 'int' },
  session_reset: {},
  shutdown: {},
  slot: RESULT,
  snapshot_export: { key: 'map of text to text', sizes: 'array of int' },
  snapshot_import: { snapshot: 'text' },
  snapshot_info: { snapshot: 'text', size: 'int', made: 'float', python: 'text', packages: 'map of text to text', lost: 'array of text' },
  snapshot_list: { snapshots: 'array of map' },
  snapshot_read: { data: 'binary' },
  snapshot_remove: {},
  snapshot_write: { left: 'int' },
  status: { 'json?': 'text', 'workers?': 'map', 'jobs?': 'map', 'runners_made?': 'int', 'runners_armed?': 'int', 'runners_arming?': 'int', 'runners_kept?': 'int', 'layers?': 'map', 'transport?': 'text', 'degraded?': 'array of text', 'pools?': 'array of map', 'environments?': 'map', 'uptime?': 'float', 'connections?': 'int', 'sessions?': 'int', 'sandboxes?': 'int', 'max_sessions?': 'int', 'max_connections?': 'int', 'fresh_layout?': 'bool', 'snapshot?': 'text', 'faults?': 'int', 'pid?': 'int', 'reloads?': 'array of int' },
};

/** Bounds, and words of results. */
const BOUNDS = { VERSION: 1, HEADER: 4, MAX_REQUEST: 83886080, MAX_REPLY: 16777216, MAX_DEPTH: 32, MAX_ENTRIES: 4096, MAX_VALUES: 32768, MAX_KEY: 4096, MAX_ARENAS: 4, MAX_ARENA: 1099511627776, MAX_LEFT_OUT: 1024, MAX_SHOWN: 64, MAX_FORM: 4194304, MAX_FORMS: 6291456, MAX_PLAIN: 65536, MAX_PATTERN: 4096, MAX_EDIT: 1048576, MAX_ROWS: 4000, MAX_MOUNTS: 16, LARGE: 1048576, MAX_SLOTS: 64, MAX_SLOT: 1073741824 };
const OUTCOMES = new Set(['finished', 'raised', 'signalled', 'timed_out', 'out_of_memory', 'output_limit', 'internal']);
const LIMITS = new Set(['memory', 'processes', 'files', 'descriptors', 'output', 'time', 'cpu']);
const REASONS = new Set(['no_match', 'hidden', 'folder', 'link', 'special', 'unreadable', 'name', 'too_large', 'too_many', 'ended', 'more']);
/** The MIME types of what is shown, and whether they are text. */
const IS_TEXT = new Map([['text/plain', true], ['text/html', true], ['text/markdown', true], ['text/latex', true], ['image/svg+xml', true], ['image/png', false], ['image/jpeg', false], ['application/pdf', false], ['application/json', true]]);

module.exports = { ANSWERS, BOUNDS, FAILURE, IS_TEXT, LIMITS, OUTCOMES, REASONS };
