//go:build llama && cgo

package llama

/*
#cgo CFLAGS: -I${SRCDIR}/../shim
#include <stdlib.h>
#include "dgr_shim.h"

extern int32_t dgrGoProgress(uintptr_t user, uint32_t stage, uint64_t done, uint64_t total);

#define DGR_QUOTE(x) #x
#define DGR_STRING(x) DGR_QUOTE(x)

// The hash of the linked library, as the build gives it to the compiler: x and 64 hexadecimal digits.
static const char * dgr_library(void) {
#ifdef SHIM_LIB
	return DGR_STRING(SHIM_LIB);
#else
	return "";
#endif
}
*/
import "C"

import (
	"encoding/hex"
	"runtime/cgo"
	"strings"
	"unsafe"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// native is an engine of the shim. Its methods are those of dgr_shim.h and dgr_sample.h, with their rules on threads.
type native struct {
	ptr     *C.dgr_engine
	info    nativeInfo
	sampler *sampler   // the owner's
	message [1024]byte // for the owner's calls
}

// nativeInfo is what a loaded shard says of itself.
type nativeInfo struct {
	architecture            string
	layers                  engine.LayerRange
	nLayer, vocab           uint32
	boundaryIn, boundaryOut uint32
	chatTemplate            bool
	window                  uint32 // 0: slots go back to any length
	memory                  engine.Memory
}

// codes of dgr_shim.h as codes of the engine.
var codes = map[C.dgr_code]engine.Code{
	C.DGR_MALFORMED:                engine.Malformed,
	C.DGR_SHARD_MISMATCH:           engine.ShardMismatch,
	C.DGR_UNSUPPORTED_ARCHITECTURE: engine.UnsupportedArchitecture,
	C.DGR_BAD_MODEL_FILE:           engine.BadModelFile,
	C.DGR_OUT_OF_MEMORY:            engine.EngineOutOfMemory,
	C.DGR_CANCELLED:                engine.Cancelled,
	C.DGR_NUMERIC_FAULT:            engine.NumericFault,
	C.DGR_NO_TEMPLATE:              engine.NoTemplate,
	C.DGR_INVALID_GRAMMAR:          engine.InvalidGrammar,
}

// failed makes an error of a code and the message that came with it; nil for DGR_OK.
func failed(code C.dgr_code, message []byte) error {
	if code == C.DGR_OK {
		return nil
	}
	name, known := codes[code]
	if !known {
		name = engine.EngineFault
	}
	// What is cited in it, as a token's bytes, may be no text, and a cut may be inside a character.
	return engine.Errorf(name, "%s", strings.ToValidUTF8(cString(message), "\uFFFD"))
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func chars(b []byte) *C.char { return (*C.char)(unsafe.Pointer(unsafe.SliceData(b))) }

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// loadProgress hears how far a load is and says whether it goes on. stage is a dgr_load_stage.
type loadProgress func(stage int, done, total uint64) (goOn bool)

const (
	stageLoading = int(C.DGR_LOADING)
	stagePaging  = int(C.DGR_PAGING)
)

var cacheTypes = map[string]C.uint32_t{"f32": C.DGR_CACHE_F32, "f16": C.DGR_CACHE_F16, "q8_0": C.DGR_CACHE_Q8_0, "q4_0": C.DGR_CACHE_Q4_0}

// loadNative makes an engine with slots slots.
func loadNative(paths []string, req engine.LoadRequest, slots uint32, progress loadProgress) (*native, error) {
	list := make([]*C.char, len(paths))
	for i, path := range paths {
		list[i] = C.CString(path)
		defer C.free(unsafe.Pointer(list[i]))
	}
	array := (**C.char)(C.malloc(C.size_t(len(paths)) * C.size_t(unsafe.Sizeof(list[0]))))
	defer C.free(unsafe.Pointer(array))
	copy(unsafe.Slice(array, len(paths)), list)

	params := C.dgr_load_params{
		layer_first: C.uint32_t(req.Layers.First), layer_end: C.uint32_t(req.Layers.End),
		slot_tokens: C.uint32_t(req.ContextLimit), slots: C.uint32_t(slots),
		batch_rows: C.uint32_t(req.BatchTokens), micro_rows: C.uint32_t(req.MicroBatch), threads: C.uint32_t(req.Threads),
		cache_type: cacheTypes[req.CacheType], flash_attention: flag(req.FlashAttention), memory_map: flag(req.MemoryMap),
		short_window: flag(req.ShortWindow),
	}
	user := cgo.NewHandle(progress)
	defer user.Delete()
	n := &native{}
	code := C.dgr_load(array, C.uint32_t(len(paths)), &params, C.dgr_progress(C.dgrGoProgress), C.uintptr_t(user),
		&n.ptr, chars(n.message[:]), C.size_t(len(n.message)))
	err := failed(code, n.message[:])
	if err != nil {
		return nil, err
	}
	n.readInfo()
	if n.sampler, err = newSampler(); err != nil {
		C.dgr_free(n.ptr)
		return nil, err
	}
	return n, nil
}

func (n *native) readInfo() {
	var info C.dgr_info
	C.dgr_info_get(n.ptr, &info)
	n.info = nativeInfo{
		architecture: C.GoString(&info.architecture[0]),
		layers:       engine.LayerRange{First: uint32(info.layer_first), End: uint32(info.layer_end)},
		nLayer:       uint32(info.n_layer), vocab: uint32(info.vocab),
		boundaryIn: uint32(info.boundary_in), boundaryOut: uint32(info.boundary_out),
		chatTemplate: info.has_chat_template != 0, window: uint32(info.window),
		memory: engine.Memory{Weights: uint64(info.weights), Cache: uint64(info.cache), Compute: uint64(info.compute)},
	}
}

// free frees the engine; its grammars are freed before.
func (n *native) free() {
	n.sampler.free()
	C.dgr_free(n.ptr)
}

// Memory says where the weights of a loaded shard are, in bytes.
type Memory struct {
	WeightsMapped uint64 // own tensors that stand in the mapped files; the others are in memory of the process
	FileMapped    uint64 // address space that maps the model's files for this engine
	FileResident  uint64 // of this, pages that the process holds
}

func (n *native) memory() Memory {
	var m C.dgr_memory
	C.dgr_memory_get(n.ptr, &m)
	return Memory{WeightsMapped: uint64(m.weights_mapped), FileMapped: uint64(m.file_mapped), FileResident: uint64(m.file_resident)}
}

// stepDesc is one step of a native batch.
type stepDesc = C.dgr_step_desc

func describe(slot uint32, start engine.Pos, rows int, want engine.Want) stepDesc {
	d := stepDesc{slot: C.uint32_t(slot), start: C.uint32_t(start), rows: C.uint32_t(rows)}
	switch want {
	case engine.WantLogitsLast, engine.WantSample:
		d.want = C.DGR_WANT_LOGITS_LAST
	case engine.WantLogitsAll:
		d.want = C.DGR_WANT_LOGITS_ALL
	default:
		d.want = C.DGR_WANT_NONE
	}
	return d
}

// step evaluates a batch. outcome has a place for each step; where it is set, the step was undone.
func (n *native) step(steps []stepDesc, tokens []engine.TokenID, boundary []float32, outcome []uint32) error {
	code := C.dgr_step(n.ptr, unsafe.SliceData(steps), C.uint32_t(len(steps)),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(tokens))), (*C.float)(unsafe.Pointer(unsafe.SliceData(boundary))),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(outcome))), chars(n.message[:]), C.size_t(len(n.message)))
	return failed(code, n.message[:])
}

// boundary fills out with the boundaries from a row of the last batch on.
func (n *native) boundary(row, rows int, out []byte) error {
	code := C.dgr_boundary(n.ptr, C.uint32_t(row), C.uint32_t(rows), unsafe.Pointer(unsafe.SliceData(out)),
		chars(n.message[:]), C.size_t(len(n.message)))
	return failed(code, n.message[:])
}

// logits fills out, vocab float32 values, with the logits after a row of the last batch.
func (n *native) logits(row int, out unsafe.Pointer) error {
	code := C.dgr_logits(n.ptr, C.uint32_t(row), out, chars(n.message[:]), C.size_t(len(n.message)))
	return failed(code, n.message[:])
}

func (n *native) truncate(slot uint32, length engine.Pos) error {
	return failed(C.dgr_truncate(n.ptr, C.uint32_t(slot), C.uint32_t(length), chars(n.message[:]), C.size_t(len(n.message))), n.message[:])
}

// reach is the least length but 0 to which a slot goes back by itself.
func (n *native) reach(slot uint32) (engine.Pos, error) {
	var least C.uint32_t
	err := failed(C.dgr_reach(n.ptr, C.uint32_t(slot), &least, chars(n.message[:]), C.size_t(len(n.message))), n.message[:])
	return engine.Pos(least), err
}

// mark is a copy of the state of a slot that cannot be cut.
func (n *native) mark(slot uint32) ([]byte, error) {
	var size C.size_t
	if err := failed(C.dgr_mark_size(n.ptr, C.uint32_t(slot), &size, chars(n.message[:]), C.size_t(len(n.message))), n.message[:]); err != nil {
		return nil, err
	}
	data := make([]byte, size)
	code := C.dgr_mark_take(n.ptr, C.uint32_t(slot), unsafe.Pointer(unsafe.SliceData(data)), size, chars(n.message[:]), C.size_t(len(n.message)))
	return data, failed(code, n.message[:])
}

// returnTo makes a slot what it was when a mark was taken at length.
func (n *native) returnTo(slot uint32, length engine.Pos, mark []byte) error {
	return failed(C.dgr_mark_return(n.ptr, C.uint32_t(slot), C.uint32_t(length), unsafe.Pointer(unsafe.SliceData(mark)), C.size_t(len(mark)),
		chars(n.message[:]), C.size_t(len(n.message))), n.message[:])
}

// copy makes an empty slot what another one is.
func (n *native) copy(from, to uint32) error {
	return failed(C.dgr_copy(n.ptr, C.uint32_t(from), C.uint32_t(to), chars(n.message[:]), C.size_t(len(n.message))), n.message[:])
}

func (n *native) clear() error {
	return failed(C.dgr_clear(n.ptr, chars(n.message[:]), C.size_t(len(n.message))), n.message[:])
}

func (n *native) abort(value bool) { C.dgr_abort(n.ptr, flag(value)) }

func (n *native) endsGeneration(token engine.TokenID) bool {
	return C.dgr_ends_generation(n.ptr, C.uint32_t(token)) != 0
}

// tokenize writes into ids and returns how many there are; more than fit when short is true. Any goroutine; message is
// room of the caller's.
func (n *native) tokenize(text string, addSpecial, parseSpecial bool, ids []engine.TokenID, message []byte) (count int, short bool, err error) {
	var size C.size_t
	data := unsafe.StringData(text + "\x00")
	code := C.dgr_tokenize(n.ptr, (*C.char)(unsafe.Pointer(data)), C.size_t(len(text)), flag(addSpecial), flag(parseSpecial),
		(*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(ids))), C.size_t(len(ids)), &size, chars(message), C.size_t(len(message)))
	if code == C.DGR_BUFFER_SHORT {
		return int(size), true, nil
	}
	return int(size), false, failed(code, message)
}

// detokenize writes into out and returns how many bytes there are; more than fit when short is true. Any goroutine;
// message is room of the caller's.
func (n *native) detokenize(ids []engine.TokenID, special bool, out, message []byte) (count int, short bool, err error) {
	var size C.size_t
	code := C.dgr_detokenize(n.ptr, (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(ids))), C.size_t(len(ids)), flag(special),
		chars(out), C.size_t(len(out)), &size, chars(message), C.size_t(len(message)))
	if code == C.DGR_BUFFER_SHORT {
		return int(size), true, nil
	}
	return int(size), false, failed(code, message)
}

// renderChat makes an answer, a JSON object, of a request, another. Any goroutine; message is room of the caller's.
func (n *native) renderChat(request, message []byte) ([]byte, error) {
	var text *C.dgr_text
	code := C.dgr_chat_render(n.ptr, chars(request), C.size_t(len(request)), &text, chars(message), C.size_t(len(message)))
	return taken(text), failed(code, message)
}

// parseChat makes a message, a JSON object, of what was generated. Any goroutine; message is room of the caller's.
func (n *native) parseChat(parser []byte, generated string, partial bool, message []byte) ([]byte, error) {
	var text *C.dgr_text
	code := C.dgr_chat_parse(n.ptr, chars(parser), C.size_t(len(parser)), (*C.char)(unsafe.Pointer(unsafe.StringData(generated))),
		C.size_t(len(generated)), flag(partial), &text, chars(message), C.size_t(len(message)))
	return taken(text), failed(code, message)
}

// taken copies a text of the shim's and frees it; nil is nil.
func taken(text *C.dgr_text) []byte {
	if text == nil {
		return nil
	}
	defer C.dgr_text_free(text)
	var size C.size_t
	data := C.dgr_text_bytes(text, &size)
	return C.GoBytes(unsafe.Pointer(data), C.int(size))
}

// takeLog moves log lines into out, as many as fit, and returns the bytes.
func (n *native) takeLog(out []byte) int {
	return int(C.dgr_log_take(n.ptr, chars(out), C.size_t(len(out))))
}

// allFinite says whether b, float32 values, holds neither NaN nor Inf.
func allFinite(b []byte) bool {
	return C.dgr_finite(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)/4)) != 0
}

// library is what the linked library is.
type library struct {
	version, backend, instructionSet string
	pin, patches                     []byte // empty: unknown
	build                            [32]byte
}

func readLibrary() library {
	var b C.dgr_build
	C.dgr_build_info(&b)
	l := library{
		version: C.GoString(&b.version[0]), backend: C.GoString(&b.backend[0]), instructionSet: C.GoString(&b.instruction_set[0]),
		pin: unhex(C.GoString(&b.pin_tree[0]), 20), patches: unhex(C.GoString(&b.patches_hash[0]), 32),
	}
	key := unhex(C.GoString(&b.build_key[0]), 32)
	if hash := C.GoString(C.dgr_library()); key == nil && len(hash) == 65 {
		key = unhex(hash[1:], 32)
	}
	copy(l.build[:], key)
	return l
}

// unhex is nil where s is not size bytes in hexadecimal.
func unhex(s string, size int) []byte {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != size {
		return nil
	}
	return b
}

// devices lists the places of computation.
func devices() []engine.Device {
	var d C.dgr_device
	C.dgr_device_get(&d)
	return []engine.Device{{
		Name: C.GoString(&d.name[0]), Backend: "cpu", MemoryTotal: uint64(d.memory_total), MemoryFree: min(uint64(d.memory_free), uint64(d.memory_total)),
	}}
}
