// Every bound of the wire and of a session, in one file, with the relations between them checked.
#pragma once

#include "node/base/clock.h"
#include "node/base/units.h"

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace starling::transport::limits {

using namespace starling::units;

// --- Handshake -----------------------------------------------------------------------------------

inline constexpr std::size_t kPreamble = 16;
// One Noise message, without its two bytes of length.
inline constexpr std::size_t kMaxHandshakeMessage = 2'048;
// The Cap'n Proto payload inside message 2 and message 3.
inline constexpr std::size_t kMaxHandshakePayload = 1'024;
// What an unauthenticated peer can make us hold.
inline constexpr std::size_t kMaxUnauthenticatedBuffer = 4_KiB;
inline constexpr std::size_t kMaxName = 64;
inline constexpr std::size_t kMaxAdvertised = 4;
// An advertised host name or address; longer DNS names exist, but four of them must fit the
// payload.
inline constexpr std::size_t kMaxAdvertisedHost = 96;
// A node's certificate with its inviter's, and both in the file that a node keeps.
inline constexpr std::size_t kMaxCertificate = 240;
inline constexpr std::size_t kMaxMembershipText = 1'024;
// A list of what the admin revoked, as a message and in its file.
inline constexpr std::size_t kMaxRevocations = 64_KiB;
// What members tell each other of the admin's word, and who holds the next secret.
inline constexpr std::size_t kAccessFacts = 32 + 8 + 8 + 8 + 1;
inline constexpr std::size_t kSecretHeldEach = 32 + 64;
inline constexpr std::size_t kSecretHeldMany = 64;
inline constexpr std::size_t kMaxSecretHeld = 8 + 8 + kSecretHeldMany * kSecretHeldEach;
// From accept (or from the established connection) to the end of the handshake, whatever arrives.
inline constexpr Duration kHandshakeDeadline = std::chrono::seconds(5);
// The TCP connection itself: per address, and for all addresses of a name together, of which a peer
// may advertise one with very many.
inline constexpr Duration kConnectDeadline = std::chrono::seconds(5);
inline constexpr Duration kDialDeadline = std::chrono::seconds(10);
inline constexpr Duration kResolveDeadline = std::chrono::seconds(5);

// Connections that have not finished message 3: in all, kept for addresses that were peers before,
// and from one IPv4 address or IPv6 /56.
inline constexpr std::size_t kMaxUnauthenticated = 128;
inline constexpr std::size_t kUnauthenticatedReserve = 32;
inline constexpr std::size_t kMaxUnauthenticatedPerAddress = 8;
// Connections of one address each second.
inline constexpr double kHandshakesPerAddress = 20.0;
inline constexpr double kHandshakeBurstPerAddress = 40.0;
// Of all that were no peers before, each second: connections whose first message is read, 0.05 ms
// each; and first messages that are answered, which costs the key exchange.
inline constexpr double kConnectionsInAll = 2'000.0;
inline constexpr double kHandshakesInAll = 200.0;
// How long accepting pauses when the process has no file descriptor left.
inline constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
// Message 1 under a secret is remembered by its ephemeral key, so that a recording opens nothing.
inline constexpr Duration kReplayMemory = std::chrono::seconds(120);
inline constexpr std::size_t kReplayEntries = 4'096;

// --- Records -------------------------------------------------------------------------------------

// The two bytes of length count the ciphertext: type, flags, body, tag.
inline constexpr std::size_t kLengthPrefix = 2;
inline constexpr std::size_t kTag = 16;
inline constexpr std::size_t kRecordHeader = 2;
inline constexpr std::size_t kMaxCiphertext = 65'535;
inline constexpr std::size_t kMinCiphertext = kRecordHeader + kTag;
inline constexpr std::size_t kMaxRecordBody = kMaxCiphertext - kMinCiphertext;
// Both directions derive new keys after so many records.
inline constexpr std::uint64_t kRekeyRecords = 1'024;
// Never reached by a session that is replaced in time; the last line of defence for the nonce.
inline constexpr std::uint64_t kMaxRecords = std::uint64_t{1} << 48;

// --- Messages and attachments --------------------------------------------------------------------

inline constexpr std::size_t kMaxMembershipBody = 16_KiB;
inline constexpr std::size_t kMaxControlBody = 64_KiB;
// The text of a swarm's secret, in its file and in the message to a newcomer.
inline constexpr std::size_t kMaxSecretText = 512;
// Type, transfer id, sizes of body and attachment: the head of a message's first record.
inline constexpr std::size_t kMessageHead = 2 + 4 + 4 + 4;
inline constexpr std::size_t kTransferId = 4;
// The largest attachment, and what all admitted attachments of all sessions may reserve together
// with the bodies that wait for them: the largest one fits.
inline constexpr std::size_t kMaxAttachment = 256_MiB;
inline constexpr std::size_t kTransferBudget = kMaxAttachment + kMaxControlBody;
// Attachments that take turns do so after this many bytes.
inline constexpr std::size_t kBulkChunk = 256_KiB;
// What a sender may send of an attachment before the receiver has said anything about it.
inline constexpr std::size_t kInitialCredit = kBulkChunk;
// How far beyond what it stored a receiver lets the sender run.
inline constexpr std::size_t kTransferWindow = 8_MiB;
// Attachments under way on one session, per direction.
inline constexpr std::size_t kMaxTransfers = 32;
// Transfers of which none moved for so long are given up by their receiver.
inline constexpr Duration kTransferStall = std::chrono::seconds(15);
// So are those of a session at whose rate they would take longer than this: 7 KB a second for the
// densest delta of ResNet-50, 0.4 for one of L2.
inline constexpr Duration kTransferTime = std::chrono::hours(1);

// What one session may hold besides what the budget granted: messages that the peer does not read,
// bodies of ours whose attachment is under way, our answers, one partial record and body.
inline constexpr std::size_t kMaxPerPeer = 8_MiB;
inline constexpr std::size_t kMaxQueuedControl = 3_MiB;
// Answers of the session itself (pong, grant, refusal) that a peer does not read.
inline constexpr std::size_t kMaxQueuedReplies = 256_KiB;
// Bulk records shrink on slow links, so that a control record waits this long for one at most.
inline constexpr std::size_t kMinBulkRecord = 8_KiB;
// With its head, its tag and TCP's heads it is one segment where 64 KiB are the most that there can
// be, on loopback and in what a network card is given at once, and one write of Asio's, which cuts
// at 64 KiB (node/decisions/0036).
inline constexpr std::size_t kMaxBulkRecord = 64_KiB - 128;
inline constexpr Duration kBulkRecordTime = std::chrono::milliseconds(15);
inline constexpr std::size_t kMinNotSentLowat = 16_KiB;
inline constexpr std::size_t kMaxNotSentLowat = 128_KiB;
inline constexpr Duration kNotSentTime = std::chrono::milliseconds(30);

// --- Sessions ------------------------------------------------------------------------------------

inline constexpr std::size_t kMaxSessions = 1'024;
inline constexpr std::size_t kMaxPendingDials = 64;
// Two connections between the same processes within this time were dialled by both: the one that
// the smaller id dialled stays.
inline constexpr Duration kSimultaneousDial = std::chrono::seconds(5);
// How long a session has to prove that it lives when its identity turns up elsewhere.
inline constexpr Duration kDuplicateProbe = std::chrono::seconds(1);
// A connection on which sent bytes were not acknowledged for so long is given up and dialled anew:
// the kernel's own patience is a quarter of an hour, and after a partition its next try may be two
// minutes away. A process that is stopped for longer loses its connections as well: its kernel
// acknowledges, but a window that stays closed counts.
inline constexpr Duration kUnacknowledged = std::chrono::seconds(30);
// How long the goodbye of a session may take.
inline constexpr Duration kCloseDeadline = std::chrono::seconds(1);
// How long the goodbyes of a node that ends wait for attachments under way, at most: a leave has 8
// s (`leave.timeout`), with a second for the goodbyes themselves. Raising it saves the last
// exchange of slow lines, and lets a peer that reads nothing hold up the exit.
inline constexpr Duration kLastAttachments = std::chrono::seconds(5);
// How long a session that a fresh handshake replaced may take to deliver what was queued, while its
// successor waits: kMaxQueuedControl at 100 KB/s.
inline constexpr Duration kHandoverDeadline = std::chrono::seconds(30);
// A session is replaced by a fresh handshake after this time or so many bytes. One that is not ends
// at the latest after the second time.
inline constexpr Duration kRenewAfter = std::chrono::minutes(15);
inline constexpr std::uint64_t kRenewAfterBytes = std::uint64_t{64} << 30;
inline constexpr Duration kRenewPatience = std::chrono::minutes(3);
inline constexpr Duration kRenewRetry = std::chrono::seconds(20);
inline constexpr Duration kMaxSessionAge = std::chrono::minutes(20);
inline constexpr std::size_t kMaxByeText = 256;

static_assert(kMaxHandshakePayload + 256 <= kMaxHandshakeMessage);
static_assert(kPreamble + 2 * (kMaxHandshakeMessage + 2) <= kMaxUnauthenticatedBuffer + 64);
static_assert(kMaxHandshakeMessage + 2 + kPreamble <= kMaxUnauthenticatedBuffer);
// Four addresses, the name, three keys and a signature, the certificate, and what Cap'n Proto adds.
static_assert(kMaxAdvertised * (kMaxAdvertisedHost + 8 + 16) + kMaxName + 8 + 2 * 32 + 64 +
                  kMaxCertificate + 8 + 8 + 32 + 6 * 8 + 8 <=
              kMaxHandshakePayload);
static_assert(kMaxRevocations <= kMaxControlBody);
static_assert(kUnauthenticatedReserve < kMaxUnauthenticated);
static_assert(kMaxRecordBody == 65'517);
static_assert(kMaxRecordBody * kRekeyRecords <= 64_MiB);
static_assert(kMaxMembershipBody <= kMaxControlBody);
static_assert(kMaxControlBody + kMessageHead <= 2 * kMaxRecordBody);
static_assert(kMaxAttachment + kMaxControlBody <= kTransferBudget &&
              kMaxAttachment <= 0xffff'ffffU);
static_assert(kMaxQueuedControl + kMaxTransfers * kMaxControlBody + kMaxQueuedReplies +
                  4 * kMaxControlBody <=
              kMaxPerPeer);
static_assert(kLengthPrefix + kMinCiphertext + kMaxBulkRecord + 40 + 32 <= 64_KiB);  // IPv6, TCP
static_assert(kMinBulkRecord < kMaxBulkRecord && kTransferId < kMinBulkRecord);
static_assert(kRenewAfter + kRenewPatience < kMaxSessionAge);

}  // namespace starling::transport::limits
