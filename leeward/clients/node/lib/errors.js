'use strict';
/*
 * Every error that this package throws, by the names that Python's client has: leeward/errors.py says more of each.
 */

class LeewardError extends Error {
  constructor(message, options) {
    super(message, options);
    Object.defineProperty(this, 'name', { value: this.constructor.name, configurable: true, writable: true });
  }
}

/** The bytes of a peer aren't what they have to be. */
class PeerError extends LeewardError {}

/** The base class of what a call of the daemon throws; `mayHaveRun` is false only where nothing can have run. */
class DaemonError extends LeewardError {
  constructor(message, mayHaveRun = true, options = undefined) {
    super(message, options);
    this.mayHaveRun = mayHaveRun;
  }
}

/** No daemon listens on the socket, or it closed the connection before it answered. */
class DaemonAway extends DaemonError {}
/** The daemon didn't answer before the deadline, or doesn't answer pings. */
class NoAnswer extends DaemonError {}
/** The daemon's bytes aren't the protocol. */
class BadReply extends DaemonError {}

/** The daemon refused the request. */
class Refused extends DaemonError {
  constructor(message, details = {}) {
    super(message, false);
    this.kind = this.constructor.kind || 'refused';
    this.retryAfter = typeof details.retry_after === 'number' ? details.retry_after : null;
  }
}

class Busy extends Refused { static kind = 'busy'; }
class QueueTimeout extends Refused { static kind = 'queue_timeout'; }
class ShuttingDown extends Refused { static kind = 'shutting_down'; }
class VersionMismatch extends Refused { static kind = 'version'; }
class RequestRejected extends Refused { static kind = 'bad_request'; }
class SessionOver extends Refused { static kind = 'session_over'; }
class ProcessOver extends Refused { static kind = 'process_over'; }
class SnapshotFailed extends Refused { static kind = 'snapshot_failed'; }
class PoolFailed extends Refused { static kind = 'pool_failed'; }
class Forbidden extends Refused { static kind = 'forbidden'; }

class Cancelled extends Refused {
  static kind = 'cancelled';
  constructor(message, details) {
    super(message, details);
    this.mayHaveRun = true;
  }
}

/** There is no such sandbox: `reason`, `when` (seconds since the epoch, 0 where unknown) and `limit` say why. */
class SandboxOver extends Refused {
  static kind = 'sandbox_over';
  constructor(message, details = {}) {
    super(message, details);
    this.mayHaveRun = details.begun !== false; // it may have ended while the program ran
    this.reason = typeof details.reason === 'string' ? details.reason : 'unknown';
    this.when = typeof details.when === 'number' && details.when >= 0 && details.when < 1e12 ? details.when : 0;
    this.limit = typeof details.limit === 'string' ? details.limit : null;
  }
}

/** `files.edit` has changed nothing: the text isn't in the file exactly once, but `found` times. */
class EditError extends LeewardError {
  constructor(path, found) {
    super(`${path}: the text to replace ${found ? `is there ${found} times; give more of what is around it` : "isn't there"}`);
    this.path = path;
    this.found = found;
  }
}

/** `files.writeMany` or `files.readMany` couldn't write or read some files; all others were. `errors` and `found` are Maps by path. */
class FilesFailed extends LeewardError {
  constructor(errors, found = new Map()) {
    const [first] = errors.values();
    super(`${first.message}${errors.size > 1 ? `; and ${errors.size - 1} more` : ''}`);
    this.errors = errors;
    this.found = found;
  }
}

/** A file call in a sandbox failed; `code` is the errno's name as Node has it, such as ENOENT. */
class OSError extends LeewardError {
  constructor(errno, code, why, path) {
    super(`${code}: ${why}, ${JSON.stringify(path)}`);
    this.errno = -errno; // as Node's own errors have it
    this.code = code;
    this.path = path;
  }
}
class FileNotFoundError extends OSError {}
class FileExistsError extends OSError {}
class NotADirectoryError extends OSError {}
class IsADirectoryError extends OSError {}
class PermissionError extends OSError {}
class TimeoutError extends OSError {}
/** The process has closed its standard input, or has ended: `taken` bytes were taken. */
class BrokenPipeError extends OSError {
  constructor(message, taken) {
    super(32, 'EPIPE', message, '');
    this.taken = taken;
  }
}

/** What the calls of a WorkdirSandbox throw; `kind` is the same word in all languages. */
class WorkdirError extends LeewardError {
  constructor(message, options) {
    super(message, options);
    this.kind = this.constructor.kind;
  }
  static kind = 'other';
}
class WorkdirRuntimeError extends WorkdirError { static kind = 'runtime'; }
/** A file or folder can't be read or written; `code` says why, as Node's own errors do. */
class WorkdirIoError extends WorkdirError {
  static kind = 'io';
  constructor(code, why, path) {
    super(`${path}: ${why}`);
    this.code = code;
    this.path = path;
  }
}
class PathTraversal extends WorkdirError {
  static kind = 'path_traversal';
  constructor(path) {
    super(`path traversal blocked: ${JSON.stringify(path).slice(0, 200)} escapes sandbox root`);
    this.path = path;
  }
}
class CommandNotFound extends WorkdirError {
  static kind = 'command_not_found';
  constructor(command) {
    super(`command not found: ${JSON.stringify(command).slice(0, 200)}`);
    this.command = command;
  }
}
/** A command took longer than it may; `result` has what it wrote before. */
class Timeout extends WorkdirError {
  static kind = 'timeout';
  constructor(result) {
    const limit = result.limit || 'time';
    super(`the command reached its limit of ${limit === 'cpu' ? 'processor time' : 'time'} after ${result.duration.toPrecision(3)} s,`
      + ` of which ${result.cpuTime.toPrecision(3)} s on a processor`);
    this.limit = limit;
    this.result = result;
  }
}
class Destroyed extends WorkdirError { static kind = 'destroyed'; }
class ToolboxNotAvailable extends WorkdirError { static kind = 'toolbox_not_available'; }
class NetworkingDisabled extends WorkdirError {
  static kind = 'networking_disabled';
  constructor() {
    super('networking disabled: configure fetch_policy to enable');
  }
}
/** A fetch of a work folder has no response; `cause` is a word for it. */
class FetchError extends WorkdirError {
  static kind = 'fetch';
  constructor(message, cause = 'http', url = '', mayHaveBeenSent = false) {
    super(message);
    this.cause = cause;
    this.url = url;
    this.mayHaveBeenSent = mayHaveBeenSent;
  }
}

/** A fetch has no response: the policy refuses it, a limit was hit, or the host can't be reached. */
class FetchFailed extends LeewardError {
  constructor(message, cause = 'http', url = '', mayHaveBeenSent = true) {
    super(message);
    this.cause = cause;
    this.url = url;
    this.mayHaveBeenSent = mayHaveBeenSent;
  }
}

module.exports = {
  LeewardError, PeerError, DaemonError, DaemonAway, NoAnswer, BadReply, Refused, Busy, QueueTimeout, ShuttingDown,
  VersionMismatch, RequestRejected, Cancelled, SessionOver, SandboxOver, ProcessOver, SnapshotFailed, PoolFailed, Forbidden, EditError, FilesFailed, OSError,
  FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError, TimeoutError,
  BrokenPipeError, WorkdirError, WorkdirRuntimeError, WorkdirIoError, PathTraversal, CommandNotFound, Timeout, Destroyed,
  ToolboxNotAvailable, NetworkingDisabled, FetchError, FetchFailed,
};
