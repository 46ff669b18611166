// What the stand-in for the driver (driver.cpp, which this text follows in one file) has beside the stream of all launches: streams for
// copies, events, page-locked memory, and copies between that and the device's that return at once.
//
// Copies run as late as the rules allow: those from the host when something else on the stream of all launches begins, those to the host
// when somebody waits for them; until then their place holds a pattern. One to the host that does not wait for what was
// launched on its memory before may also run before it, and then gives the pattern. Memory of either side that is freed under a copy
// loses the GPU.
//   TIEBREAK_SHIM_COPIES=0       there are no other streams
#include <deque>

namespace {

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
};

struct CopyStream {
    std::deque<Copy> waiting;
    uint64_t begun = 0, ended = 0;
    uint64_t seen = 0;  // of the stream of all launches, what this one comes after
};

// A stream, null for that of all launches, how much of it has to be done, and how much of that of all launches comes before.
struct Event {
    CopyStream* stream = nullptr;
    uint64_t at = 0, seen = 0;
    bool timed = false;
};

std::set<CopyStream*> copy_streams;
std::set<Event*> events;
std::map<uint64_t, size_t> pinned;
std::vector<Copy> uploads;
// What the stream of all launches was given so far, and of each allocation what was given it last.
uint64_t given = 0;
std::map<uint64_t, uint64_t> given_last;
// What the host has waited for of it.
uint64_t waited_for = 0;

constexpr unsigned char ON_ITS_WAY = 0x6b;

// Where the allocation begins that an address lies in; 0 if none does.
uint64_t start_of(uint64_t address) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return 0;
    auto [start, size] = *--after;
    return address < start + size ? start : 0;
}

bool inside_pinned(const void* at, size_t bytes) {
    auto after = pinned.upper_bound((uint64_t)at);
    if (after == pinned.begin()) return false;
    auto [start, size] = *--after;
    return (uint64_t)at + bytes <= start + size;
}

void run_uploads() {
    for (const Copy& copy : uploads) memcpy(copy.to, copy.from, copy.bytes);
    uploads.clear();
}

// Runs a stream's copies up to a place.
void run_copies(CopyStream* stream, uint64_t until) {
    run_uploads();
    for (; stream->ended < until; stream->ended++) {
        const Copy copy = stream->waiting.front();
        stream->waiting.pop_front();
        memcpy(copy.to, copy.from, copy.bytes);
    }
}

// The functions below are for driver.cpp and the others; the caller holds the lock but for the first.
void end_uploads() {
    std::lock_guard guard(lock);
    run_uploads();
}

void end_copies() {
    for (CopyStream* stream : copy_streams) run_copies(stream, stream->begun);
}

void give(uint64_t address) {
    if (uint64_t start = start_of(address)) given_last[start] = given;
}

void give_next() { given++; }

void host_waits() { waited_for = given; }

// Whether a copy is under way in memory of either side.
bool under_way(const void* at, size_t bytes) {
    const char *start = (const char*)at, *end = start + bytes;
    auto in = [&](const void* other, size_t size) { return (const char*)other < end && (const char*)other + size > start; };
    auto touches = [&](const Copy& copy) { return copy.bytes && (in(copy.to, copy.bytes) || in(copy.from, copy.bytes)); };
    return std::any_of(uploads.begin(), uploads.end(), touches) || std::any_of(copy_streams.begin(), copy_streams.end(), [&](CopyStream* stream) {
        return std::any_of(stream->waiting.begin(), stream->waiting.end(), touches);
    });
}

}  // namespace

extern "C" {

// A stream that waits for that of all launches by itself is of no use here.
int cuStreamCreate(void** stream, unsigned flags) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (flags != 1) return INVALID;
    if (setting("TIEBREAK_SHIM_COPIES", 1) == 0) return NO_GRAPHS;  // "operation not supported"
    *stream = *copy_streams.insert(new CopyStream).first;
    return OK;
}

int cuStreamDestroy_v2(void* handle) {
    std::lock_guard guard(lock);
    CopyStream* stream = (CopyStream*)handle;
    if (!copy_streams.erase(stream)) return INVALID;
    run_copies(stream, stream->begun);
    delete stream;
    return OK;
}

int cuEventCreate(void** event, unsigned flags) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (flags != 0 && flags != 2) return INVALID;
    *event = *events.insert(new Event{nullptr, 0, 0, flags == 0}).first;
    return OK;
}

int cuEventDestroy_v2(void* event) {
    std::lock_guard guard(lock);
    if (!events.erase((Event*)event)) return INVALID;
    delete (Event*)event;
    return OK;
}

int cuEventRecord(void* handle, void* on) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    CopyStream* stream = (CopyStream*)on;
    if (!events.count((Event*)handle) || (stream && !copy_streams.count(stream))) return INVALID;
    *(Event*)handle = {stream, stream ? stream->begun : given, stream ? stream->seen : given, ((Event*)handle)->timed};
    return OK;
}

// A microsecond for all that was launched between two events.
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (!events.count((Event*)from) || !events.count((Event*)to)) return INVALID;
    const Event &first = *(Event*)from, &second = *(Event*)to;
    if (!first.timed || !second.timed || second.at < first.at) return INVALID;
    *milliseconds = float(second.at - first.at) * 1e-3f;
    return OK;
}

int cuProfilerStart() { return OK; }
int cuProfilerStop() { return OK; }

// What the event says now counts; to record it again changes nothing.
int cuStreamWaitEvent(void* on, void* handle, unsigned flags) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (flags != 0 || !events.count((Event*)handle) || !copy_streams.count((CopyStream*)on)) return INVALID;
    const Event event = *(Event*)handle;
    if (event.stream) return INVALID;  // nobody of ours asks for it
    CopyStream& stream = *(CopyStream*)on;
    stream.seen = std::max(stream.seen, event.at);
    return OK;
}

int cuEventQuery(void* handle) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (!events.count((Event*)handle)) return INVALID;
    const Event& event = *(Event*)handle;
    return (event.stream ? event.stream->ended < event.at : !uploads.empty()) ? NOT_READY : OK;
}

int cuEventSynchronize(void* handle) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (!events.count((Event*)handle)) return INVALID;
    const Event& event = *(Event*)handle;
    if (event.stream) run_copies(event.stream, event.at);
    else run_uploads();
    waited_for = std::max(waited_for, event.seen);
    return OK;
}

int cuMemAllocHost_v2(void** place, size_t bytes) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (bytes == 0) return INVALID;
    void* at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!at) return NO_MEMORY;
    memset(at, FRESH, bytes);
    pinned[(uint64_t)at] = bytes;
    *place = at;
    return OK;
}

int cuMemFreeHost(void* at) {
    std::lock_guard guard(lock);
    auto found = pinned.find((uint64_t)at);
    if (found == pinned.end()) return INVALID;
    if (under_way(at, found->second)) return lose("page-locked memory was freed that a copy is under way in");
    pinned.erase(found);
    free(at);
    return OK;
}

// Memory that is not page-locked would make it wait, and so it has no use.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* on) {
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (!copy_streams.count((CopyStream*)on) || !inside(from, bytes) || !inside_pinned(to, bytes)) return INVALID;
    CopyStream& stream = *(CopyStream*)on;
    memset(to, ON_ITS_WAY, bytes);
    const bool may_run_first = given_last[start_of(from)] > std::max(stream.seen, waited_for);
    stream.waiting.push_back({to, (const void*)from, may_run_first ? 0 : bytes});
    stream.begun++;
    counts.downloads++;
    return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return LOST;
    if (stream || !inside(to, bytes) || !inside_pinned(from, bytes)) return INVALID;
    give_next();
    give(to);
    uploads.push_back({(void*)to, from, bytes});
    counts.uploads++;
    return OK;
}

}  // extern "C"
