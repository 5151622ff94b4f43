// A job from Node: its output and its exit code become ours.
//
//	npm install koffi && node run.js 'print(6 * 7)' [SECONDS]
'use strict'

const { writeSync } = require('node:fs')
const { Handle } = require('./leeward')

// process.stdout would still be writing when the process ends.
function write (fd, data) {
  for (let sent = 0; sent < data.length;) sent += writeSync(fd, data, sent)
}

try {
  const handle = new Handle()
  const result = handle.execute(process.argv[2] ?? "print('hello from a sandbox')", Number(process.argv[3] ?? 0))
  write(1, result.stdout)
  write(2, result.stderr)
  if (result.timedOut) console.error('the job ran into its time limit')
  handle.close()
  process.exitCode = result.exitCode
} catch (error) {
  console.error(error.message)
  process.exitCode = 1
}
