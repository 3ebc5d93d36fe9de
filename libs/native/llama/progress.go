//go:build llama && cgo

package llama

// #include <stdint.h>
import "C"

import "runtime/cgo"

// dgrGoProgress is the dgr_progress of every load: user is the handle of a loadProgress.
//
//export dgrGoProgress
func dgrGoProgress(user C.uintptr_t, stage C.uint32_t, done, total C.uint64_t) C.int32_t {
	if cgo.Handle(user).Value().(loadProgress)(int(stage), uint64(done), uint64(total)) {
		return 1
	}
	return 0
}
