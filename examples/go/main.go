// A job from Go: its output and its exit code become ours.
//
//	export CGO_CFLAGS="$(leeward config --cflags)" CGO_LDFLAGS="$(leeward config --libs)"
//	go build -o run . && ./run 'print(6 * 7)' [SECONDS]
package main

/*
#include <leeward.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"
)

// Result is what a job gave. Stdout and Stderr are views, and go with Free.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int
	TimedOut       bool
	c              *C.leeward_result
}

// Handle is a connection to the daemon, for one goroutine at a time.
type Handle struct{ c *C.leeward_handle }

// lastError asks the thread that failed: the caller has locked it.
func lastError() error { return errors.New(C.GoString(C.leeward_last_error())) }

// Connect finds the daemon where the command line does.
func Connect() (*Handle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle := C.leeward_connect(nil)
	if handle == nil {
		return nil, lastError()
	}
	return &Handle{handle}, nil
}

// Close ends the connection; results stay.
func (handle *Handle) Close() { C.leeward_disconnect(handle.c) }

// Execute runs code for at most so many seconds; 0 is the daemon's default.
func (handle *Handle) Execute(code string, seconds float64) (*Result, error) {
	text := C.CString(code)
	defer C.free(unsafe.Pointer(text))
	options := C.leeward_options{timeout: C.double(seconds), output: 64 << 20}
	options.size = C.size_t(unsafe.Sizeof(options))

	runtime.LockOSThread() // the last error is the thread's
	defer runtime.UnlockOSThread()
	result := C.leeward_execute(handle.c, text, C.size_t(len(code)), &options)
	if result == nil {
		return nil, lastError()
	}
	return &Result{
		Stdout:   view(result.stdout_data, result.stdout_length),
		Stderr:   view(result.stderr_data, result.stderr_length),
		ExitCode: int(result.exit_code),
		TimedOut: result.outcome == C.LEEWARD_TIMED_OUT,
		c:        result,
	}, nil
}

// Free gives the result back, and unmaps a large one.
func (result *Result) Free() { C.leeward_free_result(result.c) }

func view(data *C.uchar, length C.size_t) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(data)), int(length))
}

func run(code string, seconds float64) (int, error) {
	handle, err := Connect()
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	result, err := handle.Execute(code, seconds)
	if err != nil {
		return 0, err
	}
	defer result.Free()
	if _, err := os.Stdout.Write(result.Stdout); err != nil {
		return 0, err
	}
	if _, err := os.Stderr.Write(result.Stderr); err != nil {
		return 0, err
	}
	if result.TimedOut {
		fmt.Fprintln(os.Stderr, "the job ran into its time limit")
	}
	return result.ExitCode, nil
}

func main() {
	code, seconds := "print('hello from a sandbox')", 0.0
	if len(os.Args) > 1 {
		code = os.Args[1]
	}
	if len(os.Args) > 2 {
		seconds, _ = strconv.ParseFloat(os.Args[2], 64)
	}
	status, err := run(code, seconds)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}
