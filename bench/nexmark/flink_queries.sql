-- Nexmark's queries in Flink's SQL, over tables of bids, auctions and persons. Each begins with a line of its name.
--
-- Source: nexmark/nexmark, nexmark-flink/src/main/resources/queries/*.sql.

-- events
SELECT * FROM persons;
SELECT * FROM auctions;
SELECT * FROM bids;

-- q0
SELECT auction, bidder, price, `dateTime`, extra FROM bids;

-- q1
SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bids;

-- q2
SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0;

-- q3
SELECT P.name, P.city, P.state, A.id
FROM auctions A JOIN persons P ON A.seller = P.id
WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA');

-- q4
SELECT category, AVG(final)
FROM (
    SELECT MAX(B.price) AS final, A.category
    FROM auctions A, bids B
    WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
    GROUP BY A.id, A.category
)
GROUP BY category;

-- q5
SELECT C.auction, C.num
FROM (
    SELECT auction, COUNT(*) AS num, window_start AS starts, window_end AS ends
    FROM TABLE(HOP(TABLE bids, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
) C
JOIN (
    SELECT MAX(num) AS most, starts, ends
    FROM (
        SELECT COUNT(*) AS num, window_start AS starts, window_end AS ends
        FROM TABLE(HOP(TABLE bids, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    )
    GROUP BY starts, ends
) M
ON C.starts = M.starts AND C.ends = M.ends AND C.num >= M.most;

-- q7
SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bids B
JOIN (
    SELECT MAX(price) AS highest, window_end AS ends
    FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) H
ON B.price = H.highest
WHERE B.`dateTime` BETWEEN H.ends - INTERVAL '10' SECOND AND H.ends;

-- q8
SELECT P.id, P.name, P.starts
FROM (
    SELECT id, name, window_start AS starts, window_end AS ends
    FROM TABLE(TUMBLE(TABLE persons, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) P
JOIN (
    SELECT seller, window_start AS starts, window_end AS ends
    FROM TABLE(TUMBLE(TABLE auctions, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) A
ON P.id = A.seller AND P.starts = A.starts AND P.ends = A.ends;

-- q9
SELECT id, itemName, seller, auction, bidder, price, `dateTime`
FROM (
    SELECT A.id, A.itemName, A.seller, B.auction, B.bidder, B.price, B.`dateTime`,
        ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS place
    FROM auctions A, bids B
    WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
)
WHERE place <= 1;

-- q11
SELECT bidder, COUNT(*), SESSION_START(`dateTime`, INTERVAL '10' SECOND)
FROM bids
GROUP BY bidder, SESSION(`dateTime`, INTERVAL '10' SECOND);

-- q12
SELECT bidder, COUNT(*), window_start
FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(at_clock), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;
