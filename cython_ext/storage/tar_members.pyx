# cython: language_level=3, boundscheck=False, wraparound=False
"""The regular members of a tar archive, found header by header in C, up to the first header that is not plain.

NOTE [ Plain tars ]

Python's tarfile knows every kind of tar, but lists only 54,000 members a second.  Nearly all shards have only plain
headers.  So this module reads plain headers in C, and stops at the first one that is not plain.  Then tarfile lists the
shard from its beginning (shmloader/storage/tar_listing.py).

A header is plain if it is that of a member, a link or a folder in the old format, the ustar format or the GNU format,
with a size in octal or in base 256.  The header of a long name is plain, too (GNU or pax), and so are pax records of
one member that change neither its bytes nor the character set.  All other headers are odd: those of sparse members,
pax records for all members, sizes that are no numbers, wrong checksums, two long names for one member.

This module and tarfile must find the same members.  tests/storage/test_tar_members.py compares them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    BLOCK = 512
    LONGEST = 1 << 20       # bytes of a long name, or of pax records

# Why the reading of a part of an archive has stopped.
cdef enum Reading:
    MORE = 0        # the next header lies after this part
    END = 1         # a block of zeros
    ODD = 2         # a header that is not plain
    MEMORY = 3

cdef struct member:
    uint64_t name_end       # of its name, in the names of all members
    uint64_t place
    uint64_t size


class NotPlain(ValueError):
    """A header that only Python's tarfile reads."""


cdef inline bint is_octal(const uint8_t *field, int size, uint64_t *value) noexcept nogil:
    """Read a number; false if the field has none."""
    cdef int k = 0
    cdef uint64_t number = 0
    if field[0] == 0x80:        # base 256, of GNU tar
        for k in range(1, size):
            if number >> 55:
                return False
            number = number << 8 | field[k]
        value[0] = number
        return True
    while k < size and field[k] == 0x20:
        k += 1
    while k < size and 0x30 <= field[k] <= 0x37:
        number = number << 3 | (field[k] - 0x30)
        k += 1
    while k < size and field[k] == 0x20:
        k += 1
    value[0] = number
    return k == size or field[k] == 0


cdef inline size_t text_in(const uint8_t *field, size_t size) noexcept nogil:
    """The length of a text that ends at a zero byte, or at the end of its field."""
    cdef const void *end = memchr(field, 0, size)
    return size if end == NULL else <const uint8_t *>end - field


cdef inline bint has_checksum(const uint8_t *header) noexcept nogil:
    """Whether a header's checksum is right."""
    cdef uint32_t total = 0     # over all bytes at once, which the compiler does in vectors
    cdef uint64_t status
    cdef int k
    for k in range(BLOCK):
        total += header[k]
    for k in range(148, 156):       # the checksum itself counts as spaces
        total -= header[k]
    return is_octal(header + 148, 8, &status) and status == total + 8 * 0x20


cdef inline bint is_zero(const uint8_t *header) noexcept nogil:
    cdef int k
    for k in range(BLOCK):
        if header[k]:
            return False
    return True


cdef class TarMembers:
    """Members of one archive, in their order.

    Attributes:
        count: how many members were found.
        at: where the next header lies.
        needed: how many bytes from there on must be read together.
        ended: whether the end of the archive was found, a block of zeros.
    """
    cdef readonly uint64_t count, at, needed
    cdef readonly bint ended
    cdef uint64_t room, text_size, text_room
    cdef member *members
    cdef uint8_t *text          # their names
    cdef bint is_named, is_sized, is_after_special
    cdef uint64_t given_size    # by pax
    cdef uint8_t *given_name
    cdef size_t given_length

    def __cinit__(self):
        self.needed = BLOCK

    def __dealloc__(self):
        free(self.members)
        free(self.text)
        free(self.given_name)

    def feed(self, bytes data not None, uint64_t place) -> bool:
        """Read a part of an archive.

        Args:
            data: the part.
            place: where it begins, which is `at` or before.

        Returns:
            Whether there is more to read.

        Raises:
            NotPlain: a header is not plain; see NOTE [ Plain tars ].
        """
        cdef const uint8_t *part = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef uint64_t size = len(data)
        cdef int status
        if place > self.at:
            raise ValueError("that lies behind the next header")
        with nogil:
            status = self.parse(part, size, place)
        if status == MEMORY:
            raise MemoryError
        if status == ODD:
            raise NotPlain
        self.ended = status == END
        return not self.ended

    def end_of_file(self, uint64_t rest):
        """Note that the archive ends after this many bytes from `at` on.

        Raises:
            EOFError: it ends inside a header.
        """
        if rest or self.is_after_special or self.at == 0:
            raise EOFError
        self.ended = True

    cdef int parse(self, const uint8_t *data, uint64_t size, uint64_t place) noexcept nogil:
        """Read all headers that lie completely in a part of the archive."""
        cdef const uint8_t *header
        cdef uint64_t length
        cdef uint8_t kind
        cdef int status
        while self.at - place < size and size - (self.at - place) >= BLOCK:
            header = data + (self.at - place)
            self.needed = BLOCK
            if is_zero(header):
                return ODD if self.is_after_special else END
            if not is_octal(header + 124, 12, &length) or length >> 62 or not has_checksum(header):
                return ODD
            kind = header[156]
            if kind == c"L" or kind == c"K" or kind == c"x":
                if length > LONGEST:
                    return ODD
                self.needed = BLOCK + (length + BLOCK - 1) // BLOCK * BLOCK
                if size - (self.at - place) < self.needed:
                    return MORE
                status = self.special(kind, header + BLOCK, length)
                if status != MORE:
                    return status
                self.at += self.needed
                self.needed = BLOCK
                continue
            if kind and not c"0" <= kind <= c"7":
                return ODD
            status = self.note(header, kind, length)
            if status != MORE:
                return status
        return MORE

    cdef int note(self, const uint8_t *header, uint8_t kind, uint64_t length) noexcept nogil:
        """Note a member, if it is a regular one, and pass over it."""
        cdef size_t name = text_in(header, 100), prefix = text_in(header + 345, 155)
        cdef bint is_regular = kind == c"0" or kind == 0 or kind == c"7"
        if kind == 0 and name and header[name - 1] == c"/":     # a folder, in the oldest format
            is_regular = False
        if self.is_sized:
            length = self.given_size
        if is_regular:
            if not self.has_room(100 + 1 + 155 if not self.is_named else self.given_length):
                return MEMORY
            if self.is_named:
                self.write(self.given_name, self.given_length)
            else:
                if prefix:
                    self.write(header + 345, prefix)
                    self.write(<const uint8_t *>b"/", 1)
                self.write(header, name)
            self.members[self.count] = member(self.text_size, self.at + BLOCK, length)
            self.count += 1
        self.at += BLOCK
        if is_regular:
            self.at += (length + BLOCK - 1) // BLOCK * BLOCK
        self.is_named = self.is_sized = self.is_after_special = False
        return MORE

    cdef int special(self, uint8_t kind, const uint8_t *data, uint64_t length) noexcept nogil:
        """Note what a header says about the member after it."""
        self.is_after_special = True
        if kind == c"K":        # where a link leads to
            return MORE
        if kind == c"L":
            return self.name(data, text_in(data, length))
        return MORE if self.is_plain_pax(data, length) else ODD

    cdef int name(self, const uint8_t *data, size_t length) noexcept nogil:
        cdef uint8_t *larger
        if self.is_named or length == 0:
            return ODD
        larger = <uint8_t *>realloc(self.given_name, length)
        if larger == NULL:
            return MEMORY
        self.given_name = larger
        memcpy(larger, data, length)
        self.given_length = length
        self.is_named = True
        return MORE

    cdef bint is_plain_pax(self, const uint8_t *data, uint64_t size) noexcept nogil:
        """Note path and size in pax records; false if one is odd."""
        cdef uint64_t at = 0, length, key, k, number
        cdef const uint8_t *value
        cdef const uint8_t *equals
        while at < size and data[at]:
            length, k = 0, at
            while k < size and c"0" <= data[k] <= c"9" and length < LONGEST:
                length = length * 10 + (data[k] - c"0")
                k += 1
            if k == at or k >= size or data[k] != c" " or length > size - at or at + length <= k + 2:
                return False
            if data[at + length - 1] != c"\n":
                return False
            key = k + 1
            equals = <const uint8_t *>memchr(data + key, c"=", at + length - 1 - key)
            if equals == NULL:
                return False
            value = equals + 1
            k = data + at + length - 1 - value      # bytes of the value
            length, key = at + length, key          # where the next record begins
            if is_key(data + key, equals, b"hdrcharset", 10) or (equals - (data + key) >= 10
                                                                and memcmp(data + key, b"GNU.sparse", 10) == 0):
                return False
            if is_key(data + key, equals, b"path", 4):
                while k and value[k - 1] == c"/":
                    k -= 1
                if memchr(value, 0, k) != NULL or self.name(value, k) != MORE:
                    return False
            elif is_key(data + key, equals, b"size", 4):
                if self.is_sized or k == 0 or k > 18:
                    return False
                number = 0
                while k:
                    if not c"0" <= value[0] <= c"9":
                        return False
                    number = number * 10 + (value[0] - c"0")
                    value += 1
                    k -= 1
                self.given_size, self.is_sized = number, True
            at = length
        return True

    cdef inline void write(self, const uint8_t *data, size_t length) noexcept nogil:
        memcpy(self.text + self.text_size, data, length)
        self.text_size += length

    cdef bint has_room(self, size_t name) noexcept nogil:
        """Make room for one member more."""
        cdef uint64_t room
        cdef void *larger
        if self.count == self.room:
            room = max(<uint64_t>1024, 2 * self.room)
            larger = realloc(self.members, room * sizeof(member))
            if larger == NULL:
                return False
            self.members, self.room = <member *>larger, room
        if self.text_size + name > self.text_room:
            room = max(<uint64_t>65536, 2 * (self.text_size + name))
            larger = realloc(self.text, room)
            if larger == NULL:
                return False
            self.text, self.text_room = <uint8_t *>larger, room
        return True

    def found(self):
        """What group() takes: the names, joined, and for each member three words of 64 bits."""
        return (
            PyBytes_FromStringAndSize(<const char *>self.text, self.text_size),
            PyBytes_FromStringAndSize(<const char *>self.members, self.count * sizeof(member)),
        )


cdef inline bint is_key(const uint8_t *key, const uint8_t *end, const char *name, int length) noexcept nogil:
    return end - key == length and memcmp(key, name, length) == 0


include "storage/sample_groups.pxi"
