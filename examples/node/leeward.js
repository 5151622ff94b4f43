// leeward.h for Node, as far as run.js uses it.
'use strict'

const { execFileSync } = require('node:child_process')
const koffi = require('koffi')

const path = execFileSync('leeward', ['config', '--library'], { encoding: 'utf8' }).trim()
const library = koffi.load(path)

const TIMED_OUT = 4

// The names are koffi's; those of the fields are ours, and only their order and types count.
koffi.opaque('leeward_handle')
koffi.struct('leeward_options', {
  size: 'size_t', timeout: 'double', memory: 'uint64_t', output: 'uint64_t', processes: 'uint64_t', name: 'str',
  module: 'str', arguments: 'void *', argument_count: 'size_t', environment: 'void *', environment_count: 'size_t',
  files: 'void *', file_count: 'size_t', collect: 'void *', collect_count: 'size_t', stdin_data: 'void *',
  stdin_length: 'size_t', deadline: 'double'
})
// Up to the last field that is read here; the library makes it.
koffi.struct('leeward_result', {
  size: 'size_t', id: 'int64_t', outcome: 'int32_t', exit_code: 'int32_t', limit: 'int32_t', truncated: 'int32_t',
  stdout_data: 'void *', stdout_length: 'size_t', stderr_data: 'void *', stderr_length: 'size_t'
})

const connect = library.func('leeward_handle *leeward_connect(const char *path)')
const disconnect = library.func('void leeward_disconnect(leeward_handle *handle)')
const execute = library.func('leeward_result *leeward_execute(leeward_handle *handle, const char *code, size_t length,' +
                             ' const leeward_options *options)')
const freeResult = library.func('void leeward_free_result(leeward_result *result)')
const lastError = library.func('const char *leeward_last_error()')

// The last error is the thread's: these calls are all made on this one, none by koffi's `async`.
class Handle {
  #handle = connect(null)

  constructor () {
    if (!this.#handle) throw new Error(lastError())
  }

  // Runs code for at most so many seconds; 0 is the daemon's default. Waits for it, as execFileSync does.
  execute (code, seconds = 0) {
    const options = { size: koffi.sizeof('leeward_options'), timeout: seconds, output: 64 << 20 }
    const result = execute(this.#handle, code, Buffer.byteLength(code), options)
    if (!result) throw new Error(lastError())
    try {
      const found = koffi.decode(result, 'leeward_result')
      return {
        stdout: copy(found.stdout_data, found.stdout_length),
        stderr: copy(found.stderr_data, found.stderr_length),
        exitCode: found.exit_code,
        timedOut: found.outcome === TIMED_OUT
      }
    } finally {
      freeResult(result)
    }
  }

  close () {
    disconnect(this.#handle)
    this.#handle = null
  }
}

// A copy: the memory goes when the result is freed.
function copy (data, length) {
  return length ? Buffer.from(Buffer.from(koffi.view(data, length))) : Buffer.alloc(0)
}

module.exports = { Handle }
