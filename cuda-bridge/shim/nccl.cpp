// A stand-in for NCCL beside that for the driver (driver.cpp, which this text follows in one file): the functions that src/nccl.rs
// loads, between processes of one machine over Unix sockets whose names come from the unique id. TIEBREAK_NCCL names it.
//
// It is stricter than the library, and as late as it may be: a group's bytes move on a thread of their own after ncclGroupEnd has
// returned, in pieces and an order that differ from run to run; what is received holds a pattern until the last byte of the whole group
// is there; sizes that differ, memory that is not the device's, parts that overlap, types that are not bytes and calls outside of a
// group are refused. As in a kernel that waits for another GPU, a peer that is gone is not noticed: a transfer then ends by
// ncclCommAbort alone. It can be told to fail, in one rank, at the Nth (from 1) call or group:
//   TIEBREAK_SHIM_NCCL="RANK ncclCALL N"  this call returns an error
//   TIEBREAK_SHIM_NCCL="RANK error N"     the group ends in an asynchronous error
//   TIEBREAK_SHIM_NCCL="RANK hang N"      the group's bytes do not move
//   TIEBREAK_SHIM_NCCL="RANK stuck N"     ncclGroupEnd does not return
//   TIEBREAK_SHIM_NCCL="RANK kill N"      the process is killed when some of the group's bytes have moved
//   TIEBREAK_SHIM_NCCL="RANK stop N"      the process is stopped then
//   TIEBREAK_SHIM_NCCL_VERSION=N          the library's version, as ncclGetVersion gives it
//   TIEBREAK_SHIM_NCCL_COUNTS=FILE        where a communicator's end adds a line: rank, groups, bytes sent
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace {

enum { NCCL_OK = 0, NCCL_SYSTEM = 2, NCCL_INTERNAL = 3, NCCL_ARGUMENT = 4, NCCL_USAGE = 5, NCCL_REMOTE = 6 };

struct UniqueId { unsigned char bytes[128]; };

std::mutex nccl_lock;
std::string nccl_complaint;

int refuse(int status, const std::string& why) {
    std::lock_guard guard(nccl_lock);
    nccl_complaint = why;
    return status;
}

// Whether this is the call that is to fail.
bool fault(int own, const std::string& what) {
    std::istringstream text(getenv("TIEBREAK_SHIM_NCCL") ? getenv("TIEBREAK_SHIM_NCCL") : "");
    int rank;
    std::string named;
    uint64_t at;
    if (!(text >> rank >> named >> at) || named != what || rank != own) return false;
    static std::map<std::string, uint64_t> calls;
    std::lock_guard guard(nccl_lock);
    return ++calls[what] == at;
}

// Bytes to or from a rank.
struct Part {
    bool sends;
    int peer;
    char* at;
    size_t bytes;
};

struct Communicator {
    int rank, ranks, device;
    std::vector<int> sockets;
    std::thread worker;
    std::atomic<bool> aborted = false;
    std::atomic<int> error = NCCL_OK;
    uint64_t groups = 0, sent = 0;
};

// What stands before the bytes of each part.
struct Header { uint64_t magic, bytes; };
constexpr uint64_t PART = 0x7469656272656b21;

// A direction of a connection: the bytes that are to pass, and how far that is.
struct Stream {
    std::vector<Part> parts;
    std::vector<std::vector<char>> staged;
    size_t part = 0, at = 0;
    Header header;

    bool done() const { return part == parts.size(); }
};

// Moves at most `most` bytes: how many, or a negative status. A peer that is gone takes and gives nothing.
ssize_t move(int socket, Stream& stream, size_t most) {
    Part& part = stream.parts[stream.part];
    Header& header = stream.header;
    if (part.sends && stream.at == 0) header = {PART, part.bytes};
    const bool heads = stream.at < sizeof header;
    char* from = heads ? (char*)&header + stream.at
               : (part.sends ? part.at : stream.staged[stream.part].data()) + (stream.at - sizeof header);
    const size_t left = heads ? sizeof header - stream.at : sizeof header + part.bytes - stream.at;
    ssize_t moved = part.sends ? send(socket, from, std::min(left, most), MSG_NOSIGNAL) : recv(socket, from, std::min(left, most), 0);
    if (moved <= 0) return 0;
    stream.at += size_t(moved);
    if (!part.sends && stream.at == sizeof header && (header.magic != PART || header.bytes != part.bytes)) {
        return -refuse(NCCL_USAGE, "a rank sends " + std::to_string(header.bytes) + " bytes where " + std::to_string(part.bytes) + " are to be received");
    }
    if (stream.at == sizeof header + part.bytes) stream.part++, stream.at = 0;
    return moved;
}

// A group's transfers, until they are done or aborted.
void transfer(Communicator* c, std::vector<Part> parts, bool hangs, bool fails, int signal) {
    std::mt19937 random(unsigned(getpid()) * 31 + unsigned(c->groups) * 7 + unsigned(c->rank));
    std::vector<Stream> streams(2 * size_t(c->ranks));
    size_t moved = 0;
    for (Part& part : parts) {
        Stream& stream = streams[2 * size_t(part.peer) + part.sends];
        stream.parts.push_back(part);
        stream.staged.emplace_back(part.sends ? 0 : part.bytes);
    }
    std::vector<size_t> order;
    for (size_t i = 0; i < streams.size(); i++)
        if (!streams[i].done()) order.push_back(i);
    if (fails) c->error = NCCL_REMOTE;
    while (!c->aborted) {
        if (hangs || c->error) {
            usleep(1000);
            continue;
        }
        if (std::all_of(order.begin(), order.end(), [&](size_t i) { return streams[i].done(); })) break;
        std::shuffle(order.begin(), order.end(), random);
        bool any = false;
        for (size_t i : order) {
            if (streams[i].done()) continue;
            ssize_t now = move(c->sockets[i / 2], streams[i], 1 + random() % 65536);
            if (now < 0) c->error = int(-now);
            any |= now > 0;
            moved += now > 0 ? size_t(now) : 0;
            // No part is whole by then: what stands before its bytes moves alone.
            if (signal && moved) raise(signal), signal = 0;
        }
        if (!any) usleep(200);
    }
    if (!c->aborted) {
        std::shuffle(order.begin(), order.end(), random);
        for (size_t i : order)
            for (size_t n = 0; n < streams[i].parts.size(); n++)
                if (Part& part = streams[i].parts[n]; !part.sends) memcpy(part.at, streams[i].staged[n].data(), part.bytes);
    }
    std::lock_guard guard(stream_lock);
    transfers[c->device]--;
    stream_moved.notify_all();
}

// The group that the calling thread has begun.
struct Group {
    int depth = 0, status = NCCL_OK;
    Communicator* communicator = nullptr;
    std::vector<Part> parts;
};
thread_local Group group;

int add(const char* call, bool sends, void* at, size_t count, int type, int peer, void* handle, void* stream) {
    Communicator* c = (Communicator*)handle;
    auto refused = [&](int status, const std::string& why) { return group.status = refuse(status, std::string(call) + ": " + why); };
    if (fault(c->rank, call)) return refused(NCCL_SYSTEM, "a fault that was asked for");
    if (group.depth == 0) return refuse(NCCL_USAGE, std::string(call) + " outside of a group waits for a peer that may wait for this rank");
    if (type != 0 && type != 1) return refused(NCCL_ARGUMENT, "type " + std::to_string(type) + " is none of bytes");
    if (stream) return refused(NCCL_ARGUMENT, "the stream is not that of launches");
    if (peer < 0 || peer >= c->ranks || peer == c->rank) return refused(NCCL_ARGUMENT, "there is no rank " + std::to_string(peer) + " beside this one");
    if (group.communicator && group.communicator != c) return refused(NCCL_USAGE, "a group of two communicators");
    std::lock_guard guard(lock);
    if (count == 0 || !inside((uint64_t)at, count)) return refused(NCCL_ARGUMENT, std::to_string(count) + " bytes that are not in the device's memory");
    group.communicator = c;
    group.parts.push_back({sends, peer, (char*)at, count});
    return NCCL_OK;
}

std::string address(const UniqueId& id, int rank) {
    char name[48];
    uint64_t start;
    memcpy(&start, id.bytes, 8);
    snprintf(name, sizeof name, "/tmp/tb-nccl-%016llx-%d", (unsigned long long)start, rank);
    return name;
}

sockaddr_un named(const std::string& path) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path.c_str());
    return at;
}

// Says which rank is here, on which device, and hears the same.
bool greet(int socket, int rank, int theirs[2]) {
    int own[2] = {rank, current};
    return send(socket, own, sizeof own, MSG_NOSIGNAL) == sizeof own && recv(socket, theirs, sizeof own, MSG_WAITALL) == sizeof own;
}

void close_all(Communicator* c) {
    for (int socket : c->sockets)
        if (socket >= 0) close(socket);
    c->sockets.clear();
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
    *version = int(setting("TIEBREAK_SHIM_NCCL_VERSION", 29900));
    return NCCL_OK;
}

const char* ncclGetErrorString(int status) {
    static thread_local std::string text;
    std::lock_guard guard(nccl_lock);
    text = status == NCCL_REMOTE ? "remote process exited or there was a network error" : status == NCCL_OK ? "no error" : nccl_complaint;
    return text.c_str();
}

int ncclGetUniqueId(UniqueId* id) {
    if (fault(0, "ncclGetUniqueId")) return refuse(NCCL_SYSTEM, "no network interface");
    std::ifstream("/dev/urandom", std::ios::binary).read((char*)id->bytes, sizeof id->bytes);
    return NCCL_OK;
}

// Waits for the others without an end, as NCCL does.
int ncclCommInitRank(void** made, int ranks, UniqueId id, int rank) {
    if (fault(rank, "ncclCommInitRank")) return refuse(NCCL_INTERNAL, "a fault that was asked for");
    if (rank < 0 || rank >= ranks) return refuse(NCCL_ARGUMENT, "there is no such rank");
    Communicator* c = new Communicator{rank, ranks, current, std::vector<int>(size_t(ranks), -1)};
    std::string own = address(id, rank);
    sockaddr_un at = named(own);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (sockaddr*)&at, sizeof at) != 0 || listen(listener, ranks) != 0) return refuse(NCCL_SYSTEM, "cannot listen at " + own);
    bool twice = false;
    for (int n = 0; n + 1 < ranks; n++) {
        int there, theirs[2];
        if (n < rank) {
            sockaddr_un peer = named(address(id, n));
            while (there = socket(AF_UNIX, SOCK_STREAM, 0), connect(there, (sockaddr*)&peer, sizeof peer) != 0) close(there), usleep(1000);
        } else {
            there = accept(listener, nullptr, nullptr);
        }
        if (!greet(there, rank, theirs)) return refuse(NCCL_REMOTE, "a rank is gone");
        c->sockets[size_t(theirs[0])] = there;
        fcntl(there, F_SETFL, O_NONBLOCK);
        twice |= theirs[1] == current;
    }
    close(listener);
    unlink(own.c_str());
    if (twice) return refuse(NCCL_USAGE, "Duplicate GPU detected");
    *made = c;
    return NCCL_OK;
}

int ncclGroupStart() {
    if (group.depth++ == 0) group.parts.clear(), group.communicator = nullptr, group.status = NCCL_OK;
    return NCCL_OK;
}

int ncclSend(const void* from, size_t count, int type, int peer, void* c, void* stream) {
    return add("ncclSend", true, (void*)from, count, type, peer, c, stream);
}

int ncclRecv(void* to, size_t count, int type, int peer, void* c, void* stream) {
    return add("ncclRecv", false, to, count, type, peer, c, stream);
}

int ncclGroupEnd() {
    if (group.depth == 0) return refuse(NCCL_USAGE, "no group was begun");
    if (--group.depth > 0) return NCCL_OK;
    if (group.status != NCCL_OK) return group.status;
    Communicator* c = group.communicator;
    if (!c) return NCCL_OK;
    if (fault(c->rank, "ncclGroupEnd")) return refuse(NCCL_INTERNAL, "a fault that was asked for");
    if (c->device != current) return refuse(NCCL_USAGE, "another device is current than the communicator's");
    std::vector<Part> sorted = group.parts;
    std::sort(sorted.begin(), sorted.end(), [](const Part& a, const Part& b) { return a.at < b.at; });
    const char *written = nullptr, *read = nullptr;
    for (const Part& part : sorted) {
        // What is received overlaps nothing; the same may be sent to several.
        if (part.at < written || (!part.sends && part.at < read)) return refuse(NCCL_USAGE, "parts of a group overlap");
        const char*& last = part.sends ? read : written;
        last = std::max(last, (const char*)part.at + part.bytes);
    }
    end_uploads();
    for (Part& part : group.parts) {
        if (part.sends) c->sent += part.bytes;
        else memset(part.at, 0xa5, part.bytes);
    }
    if (fault(c->rank, "stuck"))
        while (true) pause();
    c->groups++;
    bool hangs = fault(c->rank, "hang"), fails = fault(c->rank, "error");
    int signal = fault(c->rank, "kill") ? SIGKILL : fault(c->rank, "stop") ? SIGSTOP : 0;
    if (c->worker.joinable()) c->worker.join();
    std::lock_guard guard(stream_lock);
    transfers[c->device]++;
    c->worker = std::thread(transfer, c, group.parts, hangs, fails, signal);
    return NCCL_OK;
}

int ncclCommGetAsyncError(void* handle, int* status) {
    *status = ((Communicator*)handle)->error;
    return NCCL_OK;
}

int ncclCommAbort(void* handle) {
    Communicator* c = (Communicator*)handle;
    c->aborted = true;
    if (c->worker.joinable()) c->worker.join();
    close_all(c);
    delete c;
    return NCCL_OK;
}

int ncclCommDestroy(void* handle) {
    Communicator* c = (Communicator*)handle;
    if (c->worker.joinable()) c->worker.join();
    int status = NCCL_OK;
    char byte;
    for (int socket : c->sockets)
        if (socket >= 0 && recv(socket, &byte, 1, MSG_PEEK) > 0) status = refuse(NCCL_USAGE, "bytes were sent that nobody received");
    if (const char* path = getenv("TIEBREAK_SHIM_NCCL_COUNTS"); path && status == NCCL_OK)
        std::ofstream(path, std::ios::app) << c->rank << ' ' << c->groups << ' ' << c->sent << std::endl;
    close_all(c);
    delete c;
    return status;
}

}  // extern "C"
