"""Frees the slots that no copy to a device reads any more, as Pinning._reclaim() does, but in a few microseconds.

The trainer does this for each second batch: NOTE [ Pinning ] in pinning.py.  It covers all usual cases.  The others are
left to Pinning._reclaim(): foreign streams, streams that nobody was seen to choose, and all errors, which it raises.
Nothing is unregistered here: Pinning.close() and Pinning._unlock() do that.
"""

from libc.stdint cimport uint64_t, uintptr_t

from shmloader.core.ring cimport Slots

cdef enum:
    MOST = 64                   # streams, and events, of one call

cdef uint64_t NEVER = <uint64_t>-1

cdef enum found:
    DONE
    CAPTURED                    # so nothing was done
    SPOILED                     # an event may be part of a capture
    FAILED

cdef struct on:
    void *stream
    void *event                 # after the stream's present work
    int device

cdef struct asked:
    void *event
    bint passed


cdef class Reclaim:
    """Called with no arguments, it frees the slots that no copy reads; False if Pinning._reclaim() must do it.

    Args:
        slots: the ring's slots, some of which are held back.
        devices: all devices, from 0 on.
        lent: when each payload was lent last.
        unshared: for each payload, whether only the thread that copies can have had its batch.
        address: called once with each of torch's own streams: its address.
    """
    cdef Slots slots
    cdef object address
    cdef tuple devices
    cdef list lent, unshared
    cdef dict addresses         # by stream; torch's own live as long as the process
    cdef bint is_chosen         # whether `streams` may be used again, if these are the same:
    cdef list here
    cdef uint64_t switches
    cdef uint64_t first         # when the first of the batches was lent; NEVER: to no other thread
    cdef on streams[MOST]
    cdef asked events[MOST]
    cdef int stream_count, event_count, device_count

    def __init__(self, Slots slots, tuple devices, list lent, list unshared, address):
        self.slots, self.devices = slots, devices
        self.lent, self.unshared, self.address = lent, unshared, address
        self.device_count = len(devices)
        self.addresses = {(0, device, 1): 0 for device in devices}      # the default ones

    def __call__(self) -> bool:
        cdef Slots slots = self.slots
        if slots.reclaiming or not (slots.returned or slots.reading):
            return True
        # Two deaths are handled in one call, because the calls of the driver take the time, and they are the same for
        # any number.  But not if the batch that is handed out now, or the next one, would find no slot and be copied.
        if len(slots.returned) < 2 and slots.lent + 2 <= slots.spare:
            return True
        self.slots.reclaiming = True
        try:
            return self.ask_and_reclaim()
        finally:
            self.slots.reclaiming = False

    cdef bint ask_and_reclaim(self) except -1:
        cdef Py_ssize_t died = len(self.slots.returned)
        cdef list events = []
        cdef Event event
        cdef uint64_t captures = captures_so_far()
        cdef found result
        cdef int k
        if not self.choose(died) or not self.gather():
            return False
        if died:
            for k in range(self.stream_count):
                event = Event(self.streams[k].device)
                self.streams[k].event = event.handle
                events.append(event)
        with nogil:
            result = self.ask(died > 0)
        # A capture that has begun in between may be over; then it was counted.  This comes after the last check for
        # one.
        if result == DONE and captures != captures_so_far():
            result = SPOILED
        for k in range(len(events)):
            event = events[k]
            event.handle = self.streams[k].event
            event.is_of_a_capture = result == SPOILED
        if result != DONE:
            return result != FAILED
        self.reclaim()
        if died:
            self.slots.await_them(died, [event for event in events if (<Event>event).handle != NULL])
        return True

    cdef bint choose(self, Py_ssize_t died) except -1:
        """Set `streams` to those that may have copies from the first `died`; false if that takes longer to find out."""
        cdef list here = self.slots.streams_here()
        cdef uint64_t first = NEVER, switches = switches_so_far()
        cdef bint all_unshared = True, any_left = False, usual = here is self.here
        cdef set streams, chosen
        cdef tuple each
        cdef Py_ssize_t k
        cdef int payload
        for k in range(died):
            each = self.slots.returned[k]
            payload = each[0]
            if each[1] is not here:     # the same list is the same streams
                if each[1] is None:
                    return False
                all_unshared = all_unshared and each[1] == here
                usual = False
            all_unshared = all_unshared and self.unshared[payload]
            first = min(first, <uint64_t>self.lent[payload])
        if all_unshared:
            first = NEVER
        if self.is_chosen and usual and (
            self.first == NEVER if all_unshared else switches == self.switches and first >= self.first
        ):
            return True
        streams = set(here)
        for k in range(died):
            streams.update((<tuple>self.slots.returned[k])[1])
        self.is_chosen = False
        if not all_unshared:
            chosen = chosen_since(first, &any_left)
            if chosen is None:
                return False
            for stream in streams:
                if stream[0] and stream not in chosen:      # nobody was seen to choose it
                    return False
            streams |= chosen
            for device in self.devices:
                streams.add((0, device, 1))
        if not self.place(streams, here):
            return False
        # A stream that was left is not queried for ever, and a foreign one is not queried twice.
        self.is_chosen = not any_left and all([stream in self.addresses for stream in streams])
        self.here, self.switches, self.first = here, switches, first
        return True

    cdef bint place(self, set streams, list here) except -1:
        if len(streams) > MOST:
            return False
        self.stream_count = 0
        for stream in streams:
            address = self.addresses.get(stream)
            if address is None and stream[0] & 1:           # torch's own
                address = self.addresses[stream] = self.address(stream)
            elif address is None:
                if stream not in here:                      # another thread may leave it, and destroy it
                    return False
                address = stream[0]
            self.streams[self.stream_count] = on(<void *><uintptr_t>address, NULL, stream[1])
            self.stream_count += 1
        return True

    cdef bint gather(self) except -1:
        """Collect the events that are awaited."""
        self.event_count = 0
        for entry in self.slots.reading:
            for event in entry[1]:
                if type(event) is not Event or self.event_count == MOST:
                    return False
                self.events[self.event_count] = asked((<Event>event).handle, False)
                self.event_count += 1
        return True

    cdef found ask(self, bint record) noexcept nogil:
        """Record the events, and query those that are awaited, unless a graph is captured on one of the streams."""
        cdef int mode = RELAXED, k
        cdef found result = DONE
        if exchange_mode(&mode):
            return FAILED
        for k in range(self.device_count):
            if result == DONE:
                result = self.ask_device(k, record)
        for k in range(self.event_count):
            if result == DONE and ask_event(self.events[k].event, &self.events[k].passed):
                result = FAILED
        exchange_mode(&mode)
        return result

    cdef found ask_device(self, int device, bint record) noexcept nogil:
        cdef int k = 0, error
        cdef found result
        while k < self.stream_count and self.streams[k].device != device:
            k += 1
        if k == self.stream_count:
            return DONE
        error = enter(device)
        if error:
            return DONE if error == NOT_IN_USE else FAILED      # nothing was copied there
        result = CAPTURED if self.is_captured(device) else DONE
        if result == DONE and record:
            for k in range(self.stream_count):
                if self.streams[k].device == device and record_event(&self.streams[k].event, self.streams[k].stream):
                    result = FAILED
            if result == DONE and self.is_captured(device):     # one has begun in between
                result = SPOILED
        leave()
        return result

    cdef bint is_captured(self, int device) noexcept nogil:
        cdef int k, found
        for k in range(self.stream_count):
            if self.streams[k].device == device:
                found = 0
                # an error is the driver's answer for the default stream while one that blocks it is captured
                if find_capture(self.streams[k].stream, &found) or found:
                    return True
        return False

    cdef int reclaim(self) except -1:
        """Free the slots all of whose events have passed."""
        cdef list reading = self.slots.reading
        cdef Py_ssize_t at = 0, k
        cdef int event = 0
        cdef bint passed
        while at < len(reading):
            passed = True
            for k in range(len(<list>(<tuple>reading[at])[1])):
                passed = passed and self.events[event].passed
                event += 1
            if passed:
                self.slots.reclaim_at(at)
            else:
                at += 1
        return 0
