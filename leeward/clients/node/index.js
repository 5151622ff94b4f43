'use strict';

const { Client } = require('./lib/client.js');
const { Sandbox } = require('./lib/sandbox.js');
const { Process, Kernel } = require('./lib/process.js');
const { Snapshot } = require('./lib/snapshot.js');
const { Files, FileInfo } = require('./lib/files.js');
const { Result } = require('./lib/results.js');
const { WorkdirSandbox } = require('./lib/workdir.js');

// `...require` in the object itself: so index.mjs has the names, too.
module.exports = { Client, Sandbox, Process, Kernel, Snapshot, Files, FileInfo, Result, WorkdirSandbox, default: WorkdirSandbox, ...require('./lib/errors.js') };
