'use strict';

const errors = require('./lib/errors.js');
const { Client } = require('./lib/client.js');
const { Sandbox } = require('./lib/sandbox.js');
const { Process, Kernel } = require('./lib/process.js');
const { Files, FileInfo } = require('./lib/files.js');
const { Result } = require('./lib/results.js');
const { WorkdirSandbox } = require('./lib/workdir.js');

const { refusal, systemError, ...kinds } = errors;

module.exports = { Client, Sandbox, Process, Kernel, Files, FileInfo, Result, WorkdirSandbox, default: WorkdirSandbox, ...kinds };
