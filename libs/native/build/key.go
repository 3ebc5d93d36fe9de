package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/native/source"
)

// PortableVariable names the environment variable that, set to 1, makes builds for the least instruction set of the
// architecture instead of this machine's.
const PortableVariable = "DGR_NATIVE_PORTABLE"

// recipe is all that decides the bytes of a build.
type recipe struct {
	cc, cxx  []string // compilers, with leading arguments as in CXX="ccache g++"
	series   source.Series
	compiler string   // identity of the compiler, and of the processor where the build is for it
	flags    []string // of cmake
	shim     string   // SHA-256 of the shim's files
	shimDir  string
}

// base names the compile tree: the part of the recipe that does not change while the shim is worked on, and that every
// checkout of the repository shares.
func (r recipe) base() string {
	return hashOf("dgr-native-base-1", r.series.Hash(), r.compiler, strings.Join(r.flags, "\x00"))
}

// key is the identity of the result, 64 hexadecimal digits.
func (r recipe) key() string {
	return hashOf("dgr-native-build-1", r.series.Hash(), r.compiler, strings.Join(r.flags, "\x00"), r.shim)
}

func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (b *Builder) recipe(ctx context.Context) (recipe, error) {
	series, err := b.store.Series()
	if err != nil {
		return recipe{}, err
	}
	cc, cxx, err := b.finder.compilers()
	if err != nil {
		return recipe{}, err
	}
	r := recipe{cc: cc, cxx: cxx, series: series, shimDir: filepath.Join(b.store.Module(), "shim")}
	if r.shim, err = hashFiles(r.shimDir); err != nil {
		return recipe{}, fmt.Errorf("read the shim: %w", err)
	}
	native := b.finder.getenv(PortableVariable) != "1"
	if r.compiler, err = identity(ctx, cc, cxx, native); err != nil {
		return recipe{}, err
	}
	for _, name := range []string{"CFLAGS", "CXXFLAGS", "LDFLAGS"} {
		r.compiler += fmt.Sprintf("%s=%s\n", name, b.finder.getenv(name))
	}
	r.flags = flags(native)
	return r, nil
}

func flags(native bool) []string {
	onOff := map[bool]string{true: "ON", false: "OFF"}
	return []string{
		"-DCMAKE_BUILD_TYPE=Release",
		"-DCMAKE_UNITY_BUILD=ON",
		"-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
		"-DBUILD_SHARED_LIBS=OFF",
		"-DGGML_NATIVE=" + onOff[native],
		"-DGGML_OPENMP=ON",
		"-DGGML_CCACHE=OFF",
		"-DGGML_METAL=OFF",
		"-DGGML_BLAS=OFF",
		"-DGGML_ACCELERATE=OFF",
		"-DLLAMA_BUILD_COMMON=OFF",
		"-DLLAMA_BUILD_TOOLS=OFF",
		"-DLLAMA_BUILD_EXAMPLES=OFF",
		"-DLLAMA_BUILD_TESTS=OFF",
		"-DLLAMA_BUILD_SERVER=OFF",
		"-DLLAMA_BUILD_APP=OFF",
		"-DLLAMA_OPENSSL=OFF",
	}
}

// identity tells compilers apart, and processors where the build is for the one it runs on: a cache may be shared by
// machines.
func identity(ctx context.Context, cc, cxx []string, native bool) (string, error) {
	id := runtime.GOOS + "/" + runtime.GOARCH + "\n"
	for _, compiler := range [][]string{cc, cxx} {
		version, err := ask(ctx, compiler[0], append(compiler[1:len(compiler):len(compiler)], "--version")...)
		if err != nil {
			return "", fmt.Errorf("the compiler %s does not run: %w", strings.Join(compiler, " "), err)
		}
		id += strings.Join(compiler, " ") + "\n" + version
	}
	args := append(cxx[1:len(cxx):len(cxx)], "-dM", "-E", "-x", "c++", os.DevNull)
	if native {
		processor := "-march=native"
		if runtime.GOARCH == "arm64" {
			processor = "-mcpu=native"
		}
		args = append(args, processor)
	}
	macros, err := ask(ctx, cxx[0], args...)
	if err != nil {
		return "", fmt.Errorf("the compiler %s does not tell its macros: %w", strings.Join(cxx, " "), err)
	}
	return id + macros, nil
}

// hashFiles is the SHA-256 over names and bytes of all files below dir.
func hashFiles(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		sum, err := hashFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s\x00%s\n", filepath.ToSlash(name), sum)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
