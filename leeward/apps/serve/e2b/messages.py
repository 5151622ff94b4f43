"""
E2B's messages for files and processes, in JSON and in protobuf, by the library of protobuf.

A row is a message: its fields with number, name and kind. `*` is a list, `?` a field whose presence counts, as those of
E2B's oneofs do; `map` is a map of texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory, timestamp_pb2

from leeward.apps.serve.problems import bad

#: Levels of a message within another, at most.
MOST_DEPTH = 16

_PROCESS = {
    "PTY": "1 size PTY.Size", "PTY.Size": "1 cols uint32, 2 rows uint32",
    "ProcessConfig": "1 cmd string, 2 args string*, 3 envs map, 4 cwd string?",
    "ListRequest": "", "ProcessInfo": "1 config ProcessConfig, 2 pid uint32, 3 tag string?",
    "ListResponse": "1 processes ProcessInfo*",
    "StartRequest": "1 process ProcessConfig, 2 pty PTY, 3 tag string?, 4 stdin bool?",
    "UpdateRequest": "1 process ProcessSelector, 2 pty PTY", "UpdateResponse": "",
    "ProcessEvent": "1 start ProcessEvent.StartEvent, 2 data ProcessEvent.DataEvent, 3 end ProcessEvent.EndEvent, "
                    "4 keepalive ProcessEvent.KeepAlive",
    "ProcessEvent.StartEvent": "1 pid uint32", "ProcessEvent.DataEvent": "1 stdout bytes?, 2 stderr bytes?, 3 pty bytes?",
    "ProcessEvent.EndEvent": "1 exit_code sint32, 2 exited bool, 3 status string, 4 error string?",
    "ProcessEvent.KeepAlive": "", "StartResponse": "1 event ProcessEvent", "ConnectResponse": "1 event ProcessEvent",
    "SendInputRequest": "1 process ProcessSelector, 2 input ProcessInput", "SendInputResponse": "",
    "ProcessInput": "1 stdin bytes?, 2 pty bytes?",
    "StreamInputRequest": "1 start StreamInputRequest.StartEvent, 2 data StreamInputRequest.DataEvent, "
                          "3 keepalive StreamInputRequest.KeepAlive",
    "StreamInputRequest.StartEvent": "1 process ProcessSelector", "StreamInputRequest.DataEvent": "2 input ProcessInput",
    "StreamInputRequest.KeepAlive": "", "StreamInputResponse": "",
    "SendSignalRequest": "1 process ProcessSelector, 2 signal Signal", "SendSignalResponse": "",
    "CloseStdinRequest": "1 process ProcessSelector", "CloseStdinResponse": "",
    "ConnectRequest": "1 process ProcessSelector", "ProcessSelector": "1 pid uint32?, 2 tag string?",
    "enum Signal": "SIGNAL_UNSPECIFIED 0, SIGNAL_SIGTERM 15, SIGNAL_SIGKILL 9",
}
_WATCH = "1 path string, 2 recursive bool, 3 include_entry bool, 4 allow_network_mounts bool"
_FILESYSTEM = {
    "MoveRequest": "1 source string, 2 destination string", "MoveResponse": "1 entry EntryInfo",
    "MakeDirRequest": "1 path string", "MakeDirResponse": "1 entry EntryInfo",
    "RemoveRequest": "1 path string", "RemoveResponse": "",
    "StatRequest": "1 path string", "StatResponse": "1 entry EntryInfo",
    "EntryInfo": "1 name string, 2 type FileType, 3 path string, 4 size int64, 5 mode uint32, 6 permissions string, "
                 "7 owner string, 8 group string, 9 modified_time Timestamp, 10 symlink_target string?, 11 metadata map, "
                 "12 is_symlink bool",
    "ListDirRequest": "1 path string, 2 depth uint32", "ListDirResponse": "1 entries EntryInfo*",
    "WatchDirRequest": _WATCH, "FilesystemEvent": "1 name string, 2 type EventType, 3 entry EntryInfo",
    "WatchDirResponse": "1 start WatchDirResponse.StartEvent, 2 filesystem FilesystemEvent, "
                        "3 keepalive WatchDirResponse.KeepAlive",
    "WatchDirResponse.StartEvent": "", "WatchDirResponse.KeepAlive": "",
    "CreateWatcherRequest": _WATCH, "CreateWatcherResponse": "1 watcher_id string",
    "GetWatcherEventsRequest": "1 watcher_id string", "GetWatcherEventsResponse": "1 events FilesystemEvent*",
    "RemoveWatcherRequest": "1 watcher_id string", "RemoveWatcherResponse": "",
    "enum FileType": "FILE_TYPE_UNSPECIFIED 0, FILE_TYPE_FILE 1, FILE_TYPE_DIRECTORY 2, FILE_TYPE_SYMLINK 3",
    "enum EventType": "EVENT_TYPE_UNSPECIFIED 0, EVENT_TYPE_CREATE 1, EVENT_TYPE_WRITE 2, EVENT_TYPE_REMOVE 3, "
                      "EVENT_TYPE_RENAME 4, EVENT_TYPE_CHMOD 5",
}

_Field = descriptor_pb2.FieldDescriptorProto


def _classes(package: str, rows: Mapping[str, str]) -> dict[str, type[message.Message]]:
    """The classes of a package's messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3",
                                              dependency=["google/protobuf/timestamp.proto"])
    made = dict[str, Any]()
    enums = {name.removeprefix("enum ") for name in rows if name.startswith("enum ")}
    for name, row in rows.items():
        parts = [part.split() for part in row.split(", ") if part]
        if name.startswith("enum "):
            enum = file.enum_type.add(name=name.removeprefix("enum "))
            for value, number in parts:
                enum.value.add(name=value, number=int(number))
            continue
        outer, _, inner = name.rpartition(".")
        found = made[name] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        for number, field, kind in parts:
            _add(found, package, name, int(number), field, kind, enums)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in made}


def _add(found: Any, package: str, name: str, number: int, field: str, kind: str, enums: set[str]) -> None:
    label = _Field.LABEL_REPEATED if kind.endswith("*") or kind == "map" else _Field.LABEL_OPTIONAL
    plain = kind.rstrip("*?")
    added = found.field.add(name=field, number=number, label=label)
    if kind == "map":
        entry = found.nested_type.add(name=f"{field.capitalize()}Entry")
        entry.options.map_entry = True
        for at, each in enumerate(("key", "value"), 1):
            entry.field.add(name=each, number=at, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{name}.{entry.name}"
    elif plain[0].islower():
        added.type = _Field.Type.Value(f"TYPE_{plain.upper()}")
    else:
        added.type = _Field.TYPE_ENUM if plain in enums else _Field.TYPE_MESSAGE
        added.type_name = ".google.protobuf.Timestamp" if plain == "Timestamp" else f".{package}.{plain}"
    if kind.endswith("?"):
        added.proto3_optional = True
        added.oneof_index = len(found.oneof_decl)
        found.oneof_decl.add(name=f"_{field}")


CLASSES = {f"{package}.{name}": kind for package, rows in (("process", _PROCESS), ("filesystem", _FILESYSTEM))
           for name, kind in _classes(package, rows).items()}


def parsed(name: str, data: bytes, is_json: bool) -> Any:
    """The message of the class *name* in *data*, of hostile bytes; ServeProblem if there is none."""
    found = CLASSES[name]()
    try:
        if is_json:
            json_format.Parse(data or b"{}", found, ignore_unknown_fields=True, max_recursion_depth=MOST_DEPTH)
        else:
            found.ParseFromString(data)
    except (json_format.ParseError, message.DecodeError, ValueError, RecursionError, TypeError):
        raise bad("this isn't the message that this call takes") from None
    return found


def written(name: str, row: Mapping[str, Any], is_json: bool) -> bytes:
    """*row*, a message as JSON has it but with bytes as they are, as the bytes of an answer."""
    text = json.dumps(row, default=_base64)
    if is_json:
        return text.encode()
    found: bytes = json_format.Parse(text, CLASSES[name]()).SerializeToString()
    return found


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError
    return base64.b64encode(value).decode()
