// A stand-in for NVIDIA's driver and NVRTC on a machine that has neither: the functions that src/device/ and
// src/nvrtc.rs load, over the host's memory and its C++ compiler. Everything above these two runs as it would with
// a GPU. One library plays both parts, and cuBLAS's and NCCL's (cublas.cpp, nccl.cpp): TIEBREAK_CUDA_DRIVER, TIEBREAK_NVRTC,
// TIEBREAK_CUBLAS and TIEBREAK_NCCL name it.
//
// It is stricter than a GPU where that finds mistakes: new memory is filled with a pattern, what stands behind every allocation is
// checked after every launch, and addresses are checked. It can be told to fail:
//   TIEBREAK_SHIM_MEMORY=BYTES   there is no more memory than this
//   TIEBREAK_SHIM_LOST=N         the GPU is lost at the Nth launch
//   TIEBREAK_SHIM_WRONG=N        every Nth launch leaves a wrong bit in what it writes
//   TIEBREAK_SHIM_WRONG_KERNEL=NAME  so does every launch of this one
//   TIEBREAK_SHIM_DEVICES=N      it shows so many GPUs (default: one)
//   TIEBREAK_SHIM_GRAPHS=0       it makes no graphs of launches
//   TIEBREAK_SHIM_VERSION=N      the driver's version, as cuDriverGetVersion gives it
//   TIEBREAK_SHIM_FOLDER=PATH    where compiled kernels are kept (default: the folder this was compiled in)
//   TIEBREAK_SHIM_COUNTS=FILE    where it adds a line when it is unloaded: kernels run, graphs made, graphs launched, how many of the
//                                kernels were of src/attention.rs and of src/columns.rs, copies to and from page-locked memory that
//                                return at once (streams.cpp)
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, BAD_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600, LOST = 719, NO_GRAPHS = 801 };

std::mutex lock;
std::map<uint64_t, size_t> allocations;
size_t used = 0;
uint64_t launches = 0;
std::atomic<bool> lost = false;
std::string complaint;  // why the GPU was lost, for cuGetErrorString

uint64_t setting(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

size_t memory() { return setting("TIEBREAK_SHIM_MEMORY", uint64_t(8) << 30); }

constexpr size_t BEHIND = 64;
constexpr unsigned char FRESH = 0x5a, CANARY = 0xc7;

// Whether `bytes` bytes from an address are in one allocation.
bool inside(uint64_t address, size_t bytes) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return false;
    auto [start, size] = *--after;
    return address + bytes <= start + size;
}

// Whether what stands behind every allocation is as it was.
bool canaries() {
    for (auto [address, size] : allocations)
        for (size_t i = 0; i < BEHIND; i++)
            if (((unsigned char*)address)[size + i] != CANARY) return false;
    return true;
}

// Each device's primary context is the address of its number here.
constexpr int DEVICES_MAX = 64;
char contexts[DEVICES_MAX];
thread_local int current = 0;

int devices() { return int(std::min<uint64_t>(setting("TIEBREAK_SHIM_DEVICES", 1), DEVICES_MAX)); }

// NCCL's transfers on each device's stream of all launches: what comes after them waits.
std::mutex stream_lock;
std::condition_variable stream_moved;
int transfers[DEVICES_MAX];

// Of streams.cpp: uploads that wait are done; so are all copies; the next operation on the stream of all launches begins, and is given
// memory; the host waits for all of them; a copy is under way there.
void end_uploads();
void end_copies();
void give_next();
void give(uint64_t address);
void host_waits();
bool under_way(const void* at, size_t bytes);

void after_transfers() {
    {
        std::unique_lock guard(stream_lock);
        stream_moved.wait(guard, [] { return transfers[current] == 0; });
    }
    end_uploads();
}

int lose(const std::string& why) {
    lost = true;
    complaint = why;
    return LOST;
}

struct Loaded {
    void* library;
    const char* (*start)(const unsigned*, const unsigned*, void**, void**);
    size_t (*sizes)(size_t*);
    std::string name;
    unsigned shared;          // dynamic shared memory that its text takes
    unsigned shared_max = 48 << 10;  // and that launches may ask for
};
std::set<const void*> modules;

// Graphs that were made and launched, for who counts.
struct Counts {
    uint64_t made = 0, launched = 0, attention = 0, columns = 0, downloads = 0, uploads = 0;
    ~Counts() {
        if (const char* path = getenv("TIEBREAK_SHIM_COUNTS"))
            std::ofstream(path, std::ios::app) << launches << ' ' << made << ' ' << launched << ' ' << attention << ' ' << columns << ' '
                                               << downloads << ' ' << uploads << '\n';
    }
} counts;

// Runs a kernel; the caller holds the lock.
int run(Loaded* kernel, const unsigned* grid, const unsigned* block, void** values) {
    if (lost) return LOST;
    if (!modules.count(kernel)) return lose("a kernel was launched whose module is unloaded");
    launches++;
    if (launches == setting("TIEBREAK_SHIM_LOST", 0)) return lose("unspecified launch failure");
    counts.attention += kernel->name.rfind("attention", 0) == 0;
    counts.columns += kernel->name.rfind("columns", 0) == 0;
    void* written = nullptr;
    give_next();
    size_t sizes[64];
    for (size_t i = 0, count = kernel->sizes(sizes); i < count; i++)
        if (sizes[i] == sizeof(uint64_t)) give(*(const uint64_t*)values[i]);
    if (const char* error = kernel->start(grid, block, values, &written)) return lose(error);
    if (!canaries()) return lose(kernel->name + " wrote past a buffer");
    uint64_t wrong = setting("TIEBREAK_SHIM_WRONG", 0);
    const char* name = getenv("TIEBREAK_SHIM_WRONG_KERNEL");
    if ((wrong && launches % wrong == 0) || (name && kernel->name == name)) *(unsigned*)written ^= 1;
    return OK;
}

// Shared memory is what the kernel's text takes, or a GPU would let it run over what is there.
bool launchable(const Loaded* kernel, const unsigned* grid, const unsigned* block, unsigned shared) {
    if (shared != kernel->shared || shared > kernel->shared_max) return false;
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || (i > 0 && grid[i] > 65535)) return false;
    return block[0] * block[1] * block[2] <= 1024;
}

// A launch that stands in a graph, with arguments of its own, after others.
struct Node {
    Loaded* kernel;
    unsigned grid[3], block[3];
    std::vector<std::vector<unsigned char>> arguments;
    std::vector<Node*> after;
};
struct Graph { std::vector<Node*> nodes; };
struct Executable { std::vector<Node> nodes; };

// CUDA_KERNEL_NODE_PARAMS
struct KernelNode {
    void* function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
};

std::string folder() {
    const char* text = getenv("TIEBREAK_SHIM_FOLDER");
    return text ? text : SHIM_FOLDER;
}

struct Program {
    std::string source, log, code;
};

uint64_t hash(const std::string& text) {
    uint64_t h = 14695981039346656037u;
    for (unsigned char c : text) h = (h ^ c) * 1099511628211u;
    return h;
}

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

// What stands before the library in the machine code of a kernel.
constexpr char MAGIC[] = "tiebreak-shim-4";

}  // namespace

extern "C" {

int cuInit(unsigned) { return OK; }

int cuDriverGetVersion(int* version) {
    *version = int(setting("TIEBREAK_SHIM_VERSION", 12080));
    return OK;
}

int cuGetErrorString(int status, const char** text) {
    switch (status) {
        case NO_MEMORY: *text = "out of memory"; return OK;
        case BAD_IMAGE: *text = "device kernel image is invalid"; return OK;
        case LOST: *text = complaint.c_str(); return OK;
        case INVALID: *text = "invalid argument"; return OK;
        case NO_GRAPHS: *text = "operation not supported"; return OK;
        case NOT_FOUND: *text = "named symbol not found"; return OK;
        default: *text = nullptr; return INVALID;
    }
}

int cuDeviceGetCount(int* count) { *count = devices(); return OK; }
int cuDeviceGet(int* device, int index) { *device = index; return index >= 0 && index < devices() ? OK : 101; }

int cuDeviceGetUuid(unsigned char* uuid, int device) {
    memset(uuid, 0, 16);
    snprintf((char*)uuid, 16, "host shim %d", device);
    return OK;
}

int cuDeviceGetName(char* name, int len, int) {
    snprintf(name, size_t(len), "host shim");
    return OK;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
    // Compute capability 9.0, four processors, 227 KiB of shared memory.
    *value = attribute == 75 ? 9 : attribute == 16 ? 4 : attribute == 97 ? 232448 : 0;
    return OK;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = memory(); return OK; }

int cuMemGetInfo_v2(size_t* unused, size_t* total) {
    std::lock_guard guard(lock);
    *total = memory();
    *unused = *total - std::min(*total, used);
    return OK;
}

int cuDevicePrimaryCtxRetain(void** context, int device) { *context = &contexts[device]; return OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }

int cuCtxSetCurrent(void* context) {
    current = int((char*)context - contexts);
    return lost ? LOST : OK;
}

int cuCtxSynchronize() {
    after_transfers();
    std::lock_guard guard(lock);
    end_copies();
    host_waits();
    return lost ? LOST : OK;
}

int cuStreamQuery(void* stream) {
    if (lost) return LOST;
    if (stream) return INVALID;
    end_uploads();
    std::lock_guard guard(stream_lock);
    return transfers[current] ? NOT_READY : OK;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (bytes == 0) return INVALID;
    if (used + bytes > memory()) return NO_MEMORY;
    void* at = aligned_alloc(256, (bytes + BEHIND + 255) / 256 * 256);
    if (!at) return NO_MEMORY;
    memset(at, FRESH, bytes);
    memset((char*)at + bytes, CANARY, BEHIND);
    *address = (uint64_t)at;
    allocations[*address] = bytes;
    used += bytes;
    return OK;
}

int cuMemFree_v2(uint64_t address) {
    after_transfers();
    std::lock_guard guard(lock);
    auto found = allocations.find(address);
    if (found == allocations.end()) return INVALID;
    if (under_way((const void*)address, found->second)) return lose("memory was freed that a copy is under way from");
    used -= found->second;
    allocations.erase(found);
    free((void*)address);
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (bytes && !inside(to, bytes)) return INVALID;
    give_next();
    give(to);
    memcpy((void*)to, from, bytes);
    return OK;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (stream || !inside(to, bytes) || !inside(from, bytes) || (to < from + bytes && from < to + bytes)) return INVALID;
    give_next();
    give(to);
    memcpy((void*)to, (const void*)from, bytes);
    return OK;
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (bytes && !inside(from, bytes)) return INVALID;
    host_waits();
    memcpy(to, (const void*)from, bytes);
    return OK;
}

int cuModuleLoadData(void** module, const void* image) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    const char* bytes = (const char*)image;
    if (memcmp(bytes, MAGIC, sizeof MAGIC)) return BAD_IMAGE;
    uint64_t size;
    memcpy(&size, bytes + sizeof MAGIC, 8);
    // The loader takes files; this one has a name only as long as that takes.
    std::string path = folder() + "/module-XXXXXX";
    int file = mkstemp(path.data());
    if (file < 0) return lose("cannot write to " + folder());
    const char* at = bytes + sizeof MAGIC + 8;
    while (size > 0) {
        ssize_t done = write(file, at, size);
        if (done <= 0) return lose("cannot write to " + folder());
        at += done, size -= uint64_t(done);
    }
    close(file);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    if (!library) return BAD_IMAGE;
    *module = new Loaded{library, (decltype(Loaded::start))dlsym(library, "tb_start"), (decltype(Loaded::sizes))dlsym(library, "tb_sizes"),
                         (const char*)dlsym(library, "tb_name"), *(const unsigned*)dlsym(library, "tb_shared")};
    // Launches are one at a time, under the lock.
    static char* stacks = nullptr;
    ((void (*)(char**))dlsym(library, "tb_keep_stacks"))(&stacks);
    modules.insert(*module);
    return OK;
}

int cuModuleUnload(void* module) {
    std::lock_guard guard(lock);
    modules.erase(module);
    dlclose(((Loaded*)module)->library);
    delete (Loaded*)module;
    return OK;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (((Loaded*)module)->name != name) return NOT_FOUND;
    *function = module;
    return OK;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute != 8 || value < 0 || value > 232448) return INVALID;
    ((Loaded*)function)->shared_max = unsigned(value);
    return OK;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z, unsigned shared, void*,
                   void** values, void**) {
    after_transfers();
    std::lock_guard guard(lock);
    const unsigned grid[] = {gx, gy, gz}, block[] = {x, y, z};
    return launchable((Loaded*)function, grid, block, shared) ? run((Loaded*)function, grid, block, values) : INVALID;
}

int cuGraphCreate(void** graph, unsigned flags) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (flags != 0) return INVALID;
    if (setting("TIEBREAK_SHIM_GRAPHS", 1) == 0) return NO_GRAPHS;
    *graph = new Graph;
    return OK;
}

int cuGraphDestroy(void* graph) {
    for (Node* node : ((Graph*)graph)->nodes) delete node;
    delete (Graph*)graph;
    return OK;
}

// Arguments are copied now, as the driver does.
int cuGraphAddKernelNode(void** added, void* handle, void* const* after, size_t count, const KernelNode* its) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    Graph& graph = *(Graph*)handle;
    const bool there = modules.count(its->function) && !its->extra;
    if (!there || !launchable((Loaded*)its->function, its->grid, its->block, its->shared)) return INVALID;
    Node* node = new Node{(Loaded*)its->function, {}, {}, {}, {}};
    std::copy_n(its->grid, 3, node->grid);
    std::copy_n(its->block, 3, node->block);
    for (size_t i = 0; i < count; i++) {
        if (std::find(graph.nodes.begin(), graph.nodes.end(), after[i]) == graph.nodes.end()) return delete node, INVALID;
        node->after.push_back((Node*)after[i]);
    }
    size_t sizes[64];
    const size_t arguments = node->kernel->sizes(sizes);
    for (size_t i = 0; i < arguments; i++) {
        const unsigned char* from = (const unsigned char*)its->arguments[i];
        node->arguments.emplace_back(from, from + sizes[i]);
    }
    graph.nodes.push_back(node);
    *added = node;
    return OK;
}

// Of the nodes that may run the one that was added last comes first, so that an order that nothing asks for shows.
int cuGraphInstantiateWithFlags(void** executable, void* handle, unsigned long long flags) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (flags != 0) return INVALID;
    std::vector<Node*> waiting = ((Graph*)handle)->nodes;
    std::set<Node*> done;
    Executable* made = new Executable;
    while (!waiting.empty()) {
        auto ready = std::find_if(waiting.rbegin(), waiting.rend(), [&](Node* node) {
            return std::all_of(node->after.begin(), node->after.end(), [&](Node* other) { return done.count(other) != 0; });
        });
        if (ready == waiting.rend()) return delete made, INVALID;
        made->nodes.push_back(**ready);
        done.insert(*ready);
        waiting.erase(std::next(ready).base());
    }
    counts.made++;
    *executable = made;
    return OK;
}

int cuGraphLaunch(void* executable, void* stream) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (stream) return INVALID;
    counts.launched++;
    for (Node& node : ((Executable*)executable)->nodes) {
        std::vector<void*> values;
        for (auto& argument : node.arguments) values.push_back(argument.data());
        if (int status = run(node.kernel, node.grid, node.block, values.data())) return status;
    }
    return OK;
}

int cuGraphExecDestroy(void* executable) {
    delete (Executable*)executable;
    return OK;
}

const char* nvrtcGetErrorString(int status) { return status == 6 ? "compilation failed" : "error of the shim"; }

int nvrtcVersion(int* major, int* minor) {
    *major = 0, *minor = 1;  // of no real one: caches of machine code go by it
    return 0;
}

int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = new Program{source, "", ""};
    return 0;
}

int nvrtcDestroyProgram(void** program) {
    delete (Program*)*program;
    *program = nullptr;
    return 0;
}

int nvrtcCompileProgram(void* handle, int, const char* const*) {
    Program& program = *(Program*)handle;
    // The one kernel of the text: the name before the first parenthesis after its bounds, if it has some.
    const std::string& source = program.source;
    size_t at = source.rfind("__global__");
    if (at == std::string::npos) return 6;
    size_t bounds = source.find("__launch_bounds__", at);
    size_t open = source.find('(', at);
    if (bounds < open) open = source.find('(', source.find(')', bounds));
    size_t first = source.find_last_of(" \n*", open - 1) + 1;
    std::string name = source.substr(first, open - first);
    // Threads that wait for one another: the block's, or a warp's by kernels/warp.cuh.
    bool barriers = source.find("__syncthreads") != std::string::npos || source.find("namespace warp") != std::string::npos;
    std::string text = "#include \"" SHIM_FOLDER "/" SHIM_HEADER "\"\n" + source + "\n#define TB_TEXT(name) #name\n#define TB_NAME(name) TB_TEXT(name)\nextern \"C\" const char tb_name[] = TB_NAME(" +
        name + ");\n" +
        "extern \"C\" const char* tb_start(const unsigned* grid, const unsigned* block, void** values, void** written) {\n"
        "    return shim::start(" + name + ", grid, block, " + (barriers ? "true" : "false") + ", values, written);\n}\n" +
        "#ifndef TB_DYNAMIC_BYTES\n#define TB_DYNAMIC_BYTES 0\n#endif\nextern \"C\" const unsigned tb_shared = TB_DYNAMIC_BYTES;\n"
        "extern \"C\" size_t tb_sizes(size_t* bytes) { return shim::sizes(" + name + ", bytes); }\n" +
        "extern \"C\" void tb_keep_stacks(char** place) { shim::keep_stacks(place); }\n";
    const char* compiler = getenv("CXX");
    // As the header was compiled beforehand (src/host.rs); its name changes with its text.
    std::string command = std::string(compiler ? compiler : "c++") +
        " -std=c++17 -O1 -fPIC -shared -ffp-contract=off -w -DSHIM_ONE_LAUNCH_AT_A_TIME ";
    char stem[32];
    snprintf(stem, sizeof stem, "%016llx", (unsigned long long)hash(command + text));
    std::string library = folder() + "/" + stem + ".so";
    if (access(library.c_str(), R_OK) != 0) {
        // Several processes may compile the same text: each under its own name, then renamed.
        std::string own = folder() + "/" + stem + "-" + std::to_string(getpid()) + "-" + std::to_string((uintptr_t)handle);
        std::ofstream(own + ".cpp") << text;
        int status = system((command + "-o '" + own + "' '" + own + ".cpp' 2>'" + own + ".log'").c_str());
        program.log = read(own + ".log");
        unlink((own + ".log").c_str());
        if (status != 0) return 6;
        unlink((own + ".cpp").c_str());
        if (rename(own.c_str(), library.c_str()) != 0) return 6;
    }
    std::string bytes = read(library);
    uint64_t size = bytes.size();
    program.code.assign(MAGIC, sizeof MAGIC);
    program.code.append((const char*)&size, 8);
    program.code += bytes;
    return 0;
}

int nvrtcGetProgramLogSize(void* program, size_t* bytes) { *bytes = ((Program*)program)->log.size() + 1; return 0; }
int nvrtcGetProgramLog(void* handle, char* to) {
    Program& program = *(Program*)handle;
    memcpy(to, program.log.c_str(), program.log.size() + 1);
    return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* bytes) { *bytes = ((Program*)program)->code.size(); return 0; }
int nvrtcGetCUBIN(void* handle, char* to) {
    Program& program = *(Program*)handle;
    memcpy(to, program.code.data(), program.code.size());
    return 0;
}

}  // extern "C"
