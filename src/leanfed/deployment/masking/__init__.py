"""Sums of which a fleet's server sees the total alone: SecAgg and SecAgg+ over Flower's messages.

Bonawitz et al. (CCS 2017), with the sparse graph of Bell et al. (CCS 2020). A round has four exchanges:

    keys      every client draws two key pairs and the seed of a mask of its own, and announces the public halves
    shares    it splits its mask key and its seed among its neighbours, encrypted for each
    upload    it trains, rounds its update to whole numbers, and adds its own mask and one for every neighbour,
              whose sign differs between the two, so that these cancel in the sum
    unmask    for clients that have uploaded, neighbours send shares of the seed; for those that have not, of the mask
              key; never both of one client

`graph` says who masks with whom and how many shares rebuild a secret, `secrets` has the cryptography, `identity` who
signs what, `records` the messages, `node` and `sums` the two sides, `refusals` what does not go together.
"""
