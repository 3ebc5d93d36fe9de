// The memory of a shard: which bytes are its own, which of them are mapped, which are present.

#include "internal.h"

#include "ggml-backend.h"
#include "llama-model.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <set>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace dgr {

namespace {

// A stretch of address space that maps one file without a gap; the kernel may keep it as several areas.
struct mapping {
    uintptr_t first, end;
    uint64_t  offset; // in the file, of first
    std::string file; // device and inode
    uint64_t  resident; // bytes
};

// file_mappings reads the mappings of files of this process; resident is 0 unless asked for, which takes the kernel a walk
// through all pages. Empty where the system does not tell.
std::vector<mapping> file_mappings(bool resident) {
    std::vector<mapping> found;
    std::ifstream        smaps(resident ? "/proc/self/smaps" : "/proc/self/maps");
    std::string          line;
    bool                 file = false;
    while (std::getline(smaps, line)) {
        uintptr_t     first, end;
        uint64_t      offset, kilobytes;
        unsigned long inode;
        char          rights[8], device[16];
        if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %15s %lu", &first, &end, rights, &offset, device, &inode) == 6) {
            file = inode != 0;
            if (!file) {
                continue;
            }
            const std::string name = std::string(device) + ":" + std::to_string(inode);
            if (!found.empty() && found.back().file == name && found.back().end == first &&
                found.back().offset + (found.back().end - found.back().first) == offset) {
                found.back().end = end;
            } else {
                found.push_back({ first, end, offset, name, 0 });
            }
        } else if (file && sscanf(line.c_str(), "Rss: %" SCNu64 " kB", &kilobytes) == 1) {
            found.back().resident += kilobytes * 1024;
        }
    }
    return found;
}

// field is the number behind a name in a file of lines `name number`, summed over the names; 0: none of them is there.
uint64_t field(const char * path, std::initializer_list<const char *> names) {
    std::ifstream file(path);
    std::string   name, rest;
    uint64_t      value, sum = 0;
    while (file >> name >> value) {
        std::getline(file, rest);
        if (std::find(names.begin(), names.end(), name) != names.end()) {
            sum += value;
        }
    }
    return sum;
}

uint64_t read_number(const char * path) {
    std::ifstream file(path);
    uint64_t      value = 0;
    return file >> value ? value : UINT64_MAX;
}

} // namespace

std::vector<own_tensor> own_tensors(const llama_model * model) {
    std::vector<own_tensor>   tensors;
    std::set<const uint8_t *> seen; // a tied matrix is listed under two names
    for (const auto & entry : llama_internal_get_tensor_map(model)) {
        const ggml_tensor * t    = entry.second;
        const uint8_t *     data = static_cast<const uint8_t *>(t->data);
        if (data == nullptr || !seen.insert(data).second) {
            continue;
        }
        if (t->buffer != nullptr && !ggml_backend_buffer_is_host(t->buffer)) {
            data = nullptr; // repacked or on a device: counts, is not for us to read
        }
        tensors.push_back({ data, ggml_nbytes(t) });
    }
    return tensors;
}

void touch(const std::vector<own_tensor> & tensors, dgr_progress progress, uintptr_t user) {
    constexpr size_t chunk = 4 * 1024 * 1024;
    const size_t     page  = size_t(sysconf(_SC_PAGESIZE));
    uint64_t         total = 0, done = 0, reported = 0;
    for (const auto & t : tensors) {
        total += t.size;
    }
    auto report = [&] {
        if (progress != nullptr && progress(user, DGR_PAGING, done, total) == 0) {
            throw failure(DGR_CANCELLED, "the load was stopped while it read weights");
        }
    };
    volatile uint8_t sink = 0;
    for (const auto & t : tensors) {
        for (size_t at = 0; at < t.size; at += chunk) {
            const size_t n = std::min(chunk, t.size - at);
            for (size_t i = 0; t.data != nullptr && i < n; i += page) {
                sink = sink + t.data[at + i];
            }
            if (t.data != nullptr) {
                sink = sink + t.data[at + n - 1];
            }
            done += n;
            if (done - reported >= chunk) {
                reported = done;
                report();
            }
        }
    }
    report();
}

void drop_foreign(const std::vector<own_tensor> & tensors) {
#ifdef __linux__
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    // the pages of own tensors, as stretches that ascend and do not touch
    std::vector<std::pair<uintptr_t, uintptr_t>> own;
    for (const auto & t : tensors) {
        if (t.data != nullptr && t.size > 0) {
            const uintptr_t at = reinterpret_cast<uintptr_t>(t.data);
            own.emplace_back(at / page * page, (at + t.size + page - 1) / page * page);
        }
    }
    std::sort(own.begin(), own.end());
    for (const auto & m : file_mappings(false)) {
        const auto inside = [&](const std::pair<uintptr_t, uintptr_t> & o) { return m.first <= o.first && o.first < m.end; };
        if (std::none_of(own.begin(), own.end(), inside)) {
            continue; // another file, or another engine's mapping of the same one
        }
        uintptr_t at   = m.first;
        auto      drop = [&](uintptr_t end) {
            if (end > at) {
                madvise(reinterpret_cast<void *>(at), end - at, MADV_DONTNEED);
            }
        };
        for (const auto & o : own) {
            if (inside(o)) {
                drop(o.first);
                at = std::max(at, o.second);
            }
        }
        drop(m.end);
    }
#else
    (void) tensors;
#endif
}

void measure_weights(const std::vector<own_tensor> & tensors, dgr_memory * out) {
    const auto mappings = file_mappings(true);
    std::set<size_t> ours;
    for (const auto & t : tensors) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(t.data);
        for (size_t i = 0; at != 0 && i < mappings.size(); i++) {
            if (mappings[i].first <= at && at < mappings[i].end) {
                out->weights_mapped += t.size;
                ours.insert(i);
                break;
            }
        }
    }
    for (size_t i : ours) {
        out->file_mapped += mappings[i].end - mappings[i].first;
        out->file_resident += mappings[i].resident;
    }
}

uint64_t available_memory() {
    uint64_t least = UINT64_MAX;
    if (const uint64_t kilobytes = field("/proc/meminfo", { "MemAvailable:" })) {
        least = kilobytes * 1024;
    }
    // A container: what the kernel can take back from its share of the page cache, mapped weights included, is free too.
    const uint64_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        const uint64_t cache = std::min(used, field("/sys/fs/cgroup/memory.stat", { "active_file", "inactive_file" }));
        least                = std::min(least, limit > used - cache ? limit - (used - cache) : 0);
    }
    return least;
}

} // namespace dgr
